"""What is, what should be, and the steps between: pure, and one for operators and laptops."""
