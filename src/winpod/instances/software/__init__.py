"""What an instance gets: programs, configuration and services, put together as a blueprint."""
