import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.image_samples import LINUX, index, index_of, manifest, single, stored, windows
from winpod.images.errors import CorruptContent, ImageNotFound
from winpod.images.manifests import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    ImageBundle,
    ImageManifest,
    Index,
    describe_image,
    parse_config,
    parse_document,
    verify_content,
)
from winpod.windows.platforms import Image, Platform


async def describe(bundle: ImageBundle, *, sizes: bool = True, without: str = "") -> Image:
    blobs: Mapping[str, bytes] = {
        d.digest: c for d, c in (*bundle.blobs, *bundle.manifests) if isinstance(c, bytes)
    }

    async def fetch(descriptor: Descriptor, limit: int) -> bytes:
        if descriptor.digest == without or descriptor.digest not in blobs:
            raise ImageNotFound("not here")
        assert len(blobs[descriptor.digest]) <= limit
        return blobs[descriptor.digest]

    return await describe_image("app", bundle.root, fetch, sizes=sizes)


async def test_index_has_every_platform_with_its_size() -> None:
    bundle = index(LINUX, windows("10.0.17763.805"), windows("10.0.20348.2113"))
    image = await describe(bundle)
    assert image.is_index
    assert image.digest == bundle.root.digest
    assert image.builds() == ("10.0.17763.805", "10.0.20348.2113")
    configs = [d.size for d, _ in bundle.blobs if d.media_type == OCI_CONFIG]
    assert [m.size for m in image.manifests] == [size + len(b"layer") for size in configs]


async def test_platform_of_a_single_manifest_is_from_the_config() -> None:
    image = await describe(single(windows("10.0.17763.805", "arm64")))
    assert not image.is_index
    assert image.manifests[0].platform == windows("10.0.17763.805", "arm64")


async def test_missing_platform_of_an_entry_is_from_the_config() -> None:
    (descriptor, data), blobs = manifest(windows("10.0.20348.1"))
    bare = Descriptor(descriptor.media_type, descriptor.digest, descriptor.size)
    image = await describe(ImageBundle(tuple(blobs), ((bare, data), index_of([bare]))))
    assert image.builds() == ("10.0.20348.1",)


async def test_docker_media_types_are_read_like_oci() -> None:
    config = stored("application/vnd.docker.container.image.v1+json", {"os": "Windows"})
    document = {"mediaType": DOCKER_MANIFEST, "config": config[0].as_json(), "layers": []}
    child = stored(DOCKER_MANIFEST, document)
    entry = {
        **child[0].as_json(),
        "platform": {"os": "Windows", "architecture": "x86_64", "os.version": "10.0.17763.1"},
    }
    root = stored(DOCKER_INDEX, {"mediaType": DOCKER_INDEX, "manifests": [entry]})
    image = await describe(ImageBundle((config,), (child, root)))
    assert [m.platform for m in image.manifests] == [windows("10.0.17763.1")]


async def test_attestations_are_not_platforms() -> None:
    one, blobs = manifest(windows("10.0.20348.1"))
    unknown, _ = manifest(Platform("unknown", "unknown"))
    marked = Descriptor(
        OCI_MANIFEST,
        "sha256:" + "0" * 64,
        5,
        annotations={"vnd.docker.reference.type": "attestation-manifest"},
    )
    root = index_of([one[0], unknown[0], marked])
    image = await describe(ImageBundle(tuple(blobs), (one, unknown, root)))
    assert len(image.manifests) == 1


async def test_nested_indexes_are_read() -> None:
    inner = index(windows("10.0.17763.1"))
    one, blobs = manifest(LINUX)
    root = index_of([inner.root, one[0]])
    image = await describe(ImageBundle((*inner.blobs, *blobs), (*inner.manifests, one, root)))
    assert {m.platform for m in image.manifests} == {windows("10.0.17763.1"), LINUX}


async def test_deeply_nested_indexes_are_rejected() -> None:
    bundle = index(LINUX)
    documents = list(bundle.manifests)
    for _ in range(6):
        documents.append(index_of([documents[-1][0]]))
    with pytest.raises(CorruptContent, match="nested"):
        await describe(ImageBundle(bundle.blobs, tuple(documents)))


async def test_platform_without_content_is_skipped() -> None:
    bundle = index(windows("10.0.17763.1"), windows("10.0.20348.1"))
    image = await describe(bundle, without=bundle.manifests[0][0].digest)
    assert image.builds() == ("10.0.20348.1",)


async def test_without_sizes_only_the_index_is_read() -> None:
    bundle = index(windows("10.0.17763.1"), windows("10.0.20348.1"))
    image = await describe(ImageBundle((), bundle.manifests[-1:]), sizes=False)
    assert image.builds() == ("10.0.17763.1", "10.0.20348.1")


async def test_config_without_os_is_rejected() -> None:
    config = stored("application/vnd.cncf.helm.config.v1+json", {"name": "chart"})
    document = {"mediaType": OCI_MANIFEST, "config": config[0].as_json(), "layers": []}
    with pytest.raises(CorruptContent, match="no operating system"):
        await describe(ImageBundle((config,), (stored(OCI_MANIFEST, document),)))


DESCRIPTOR = {"mediaType": OCI_MANIFEST, "digest": "sha256:" + "0" * 64, "size": 1}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "not an object"),
        ({}, "neither"),
        ({"mediaType": "text/html"}, "text/html"),
        ({"schemaVersion": 1, "fsLayers": []}, "schema 1"),
        ({"manifests": {}}, 'list "manifests"'),
        ({"manifests": [1]}, 'object "manifests[0]"'),
        ({"manifests": [{**DESCRIPTOR, "digest": "sha256:../../x"}]}, "manifests[0].digest"),
        ({"manifests": [{**DESCRIPTOR, "size": -1}]}, "manifests[0].size"),
        ({"manifests": [{**DESCRIPTOR, "size": True}]}, "manifests[0].size"),
        ({"manifests": [{**DESCRIPTOR, "mediaType": 1}]}, "mediaType"),
        ({"manifests": [{**DESCRIPTOR, "platform": {"os": 1}}]}, '"os"'),
        ({"manifests": [{**DESCRIPTOR, "platform": {"os.features": "x"}}]}, "os.features"),
        ({"mediaType": "x" * 257, "manifests": []}, '"mediaType" of 257 characters'),
        ({"config": DESCRIPTOR}, 'list "layers"'),
        ({"config": None, "layers": []}, 'object "config"'),
    ],
)
def test_malformed_documents_are_explained(document: object, says: str) -> None:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(CorruptContent) as caught:
        parse_document(data, "The manifest")
    assert says in caught.value.message


@pytest.mark.parametrize("key", ["os", "architecture", "variant", "os.version", "os.features"])
def test_overlong_platform_fields_are_rejected(key: str) -> None:
    for length in (256, 257):
        value = ["x" * (length - 2), "y"] if key == "os.features" else "x" * length
        platform = {"os": "windows", "architecture": "amd64", key: value}
        data = json.dumps({"manifests": [{**DESCRIPTOR, "platform": platform}]}).encode()
        if length == 256:
            assert isinstance(parse_document(data, "The index"), Index)
            continue
        for parse, text in (
            (parse_document, data),
            (parse_config, json.dumps(platform).encode()),
        ):
            with pytest.raises(CorruptContent, match=f'"{key}" of 257 characters'):
                parse(text, "The index")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["manifests", "config", "layers", "mediaType", "digest", "size", "platform", "os"]
            ),
            inner,
            max_size=5,
        )
        | st.just({**DESCRIPTOR})
    ),
    max_leaves=12,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_document_parses_or_is_corrupt_content(data: bytes) -> None:
    for parse in (parse_document, parse_config):
        try:
            document = parse(data, "The document")
        except CorruptContent:
            continue
        assert isinstance(document, Index | ImageManifest | Platform)


def test_content_must_match_its_descriptor() -> None:
    descriptor, data = stored("x", b"content")
    verify_content(data, descriptor, "here")
    with pytest.raises(CorruptContent, match="returned 6 bytes"):
        verify_content(data[:-1], descriptor, "here")
    with pytest.raises(CorruptContent, match="digest"):
        verify_content(b"CONTENT", descriptor, "here")
