import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.images.references import Reference, parse_reference

DIGEST = "sha256:" + "a1" * 32


@pytest.mark.parametrize(
    ("text", "canonical", "familiar"),
    [
        ("nginx", "docker.io/library/nginx:latest", "nginx:latest"),
        ("nginx:1.25", "docker.io/library/nginx:1.25", "nginx:1.25"),
        ("user/app", "docker.io/user/app:latest", "user/app:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest", "nginx:latest"),
        ("index.docker.io/user/app:1", "docker.io/user/app:1", "user/app:1"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        ("localhost:5000/x", "localhost:5000/x:latest", "localhost:5000/x:latest"),
        ("[::1]:5000/x:t", "[::1]:5000/x:t", "[::1]:5000/x:t"),
        ("10.0.0.1/a/b/c", "10.0.0.1/a/b/c:latest", "10.0.0.1/a/b/c:latest"),
        ("Registry/app", "Registry/app:latest", "Registry/app:latest"),
        (f"nginx@{DIGEST}", f"docker.io/library/nginx@{DIGEST}", f"nginx@{DIGEST}"),
        (f"nginx:1@{DIGEST}", f"docker.io/library/nginx:1@{DIGEST}", f"nginx:1@{DIGEST}"),
        (
            "mcr.microsoft.com/windows/servercore:ltsc2022",
            "mcr.microsoft.com/windows/servercore:ltsc2022",
            "mcr.microsoft.com/windows/servercore:ltsc2022",
        ),
        ("a__b/c--d/e.f", "docker.io/a__b/c--d/e.f:latest", "a__b/c--d/e.f:latest"),
        ("localhost:5000", "docker.io/library/localhost:5000", "localhost:5000"),
    ],
)
def test_names_are_parsed_as_docker_does(text: str, canonical: str, familiar: str) -> None:
    reference = parse_reference(text)
    assert str(reference) == canonical
    assert reference.familiar == familiar
    assert parse_reference(canonical) == reference
    assert parse_reference(familiar) == reference


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" nginx", "spaces"),
        ("https://example.com/app", "URL"),
        ("App", "lowercase"),
        ("user/App", "lowercase"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("a___b", '"a___b"'),
        ("-a", '"-a"'),
        ("a:", "tag"),
        ("a:.x", "tag"),
        ("a:" + "t" * 129, "tag"),
        ("a@sha256:abc", "digest"),
        ("a@" + DIGEST.upper(), "digest"),
        ("a@md5:" + "0" * 32, "digest"),
        ("a@", "digest"),
        ("ex_ample.com/app", "registry"),
        ("[::::]:5000/app", "registry"),
        ("[1:2]/app", "registry"),
        ("0" * 64, "image id"),
        ("a/" * 127 + "ab", "255"),
        ("naïve", '"naïve"'),
        ("a\n", "spaces"),
    ],
)
def test_invalid_names_are_rejected_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match="failed to parse image reference") as caught:
        parse_reference(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_name_of_255_characters_is_allowed() -> None:
    name = "e.io/" + "a" * 250
    assert parse_reference(name).repository == "a" * 250


@given(st.one_of(st.text(), st.text(alphabet="aA0./:@-_[]sha256é ", max_size=300)))
def test_any_text_parses_or_is_invalid_input(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidInput:
        return
    assert parse_reference(str(reference)) == reference
    assert parse_reference(reference.familiar) == reference


_part = st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,8}){0,2}", fullmatch=True)
references = st.builds(
    Reference,
    registry=st.sampled_from(["docker.io", "mcr.microsoft.com", "localhost:5000", "[::1]:443"]),
    repository=st.lists(_part, min_size=2, max_size=4).map("/".join),
    tag=st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=128),
    digest=st.sampled_from(["", DIGEST]),
)


@given(references)
def test_canonical_and_familiar_names_round_trip(reference: Reference) -> None:
    assert parse_reference(str(reference)) == reference
    assert parse_reference(reference.familiar) == reference
