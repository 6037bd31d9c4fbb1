"""`winpod image`: make Windows images and look into them."""

import typer

app = typer.Typer(help="Make Windows images and look into them.", no_args_is_help=True)


@app.callback()
def _image() -> None:
    """Make Windows images and look into them."""
