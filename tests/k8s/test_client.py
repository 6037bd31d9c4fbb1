"""Errors of the API server."""

import pytest

from winpod.errors import Unavailable, WinpodError
from winpod.k8s.client import ApiError, forbidden_labels

REFUSED = (
    'the API server refused: nodes "w" is forbidden: is not allowed to set the following labels: '
    "node-role.kubernetes.io/a, example.com/b."
)


@pytest.mark.parametrize(
    ("error", "labels"),
    [
        (ApiError(403, "Forbidden", REFUSED), {"node-role.kubernetes.io/a", "example.com/b"}),
        (ApiError(403, "Forbidden", "the API server refused: no."), set()),
        (ApiError(422, "Invalid", REFUSED), set()),
        (Unavailable(REFUSED), set()),
    ],
)
def test_forbidden_labels_are_those_of_node_restriction(
    error: WinpodError, labels: set[str]
) -> None:
    assert forbidden_labels(error) == labels


def test_reason_is_that_of_the_api_server() -> None:
    assert ApiError(404, "NotFound", "x").reason == "NotFound"
    assert ApiError(418, "", "x").reason == "ApiError"
