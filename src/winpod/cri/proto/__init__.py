"""The CRI's messages. `api_pb2` is generated from api.proto by `make proto`."""
