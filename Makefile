# make demo: an example session. make test: lint, types, layers and unit tests.
# Both install their requirements on a bare Debian 12.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := .demo
# Failed tests are run once more, without other tests: a shared machine can stall for longer than
# any timeout. A test that fails twice fails.
AGAIN := --last-failed --last-failed-no-failures none

.PHONY: demo demo-run test lint unit e2e conformance conformance-hypervisor fresh-machine \
  fresh-machine-short bench docs manifests proto protocol models lock clean

demo: $(READY)
	@rm -rf $(DEMO)/images
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/pack-images $(DEMO)/images
	$(BIN)/winpod image show oci:$(DEMO)/images:registry.example/sdk:2.1
	$(BIN)/winpod check --layout $(DEMO)/images --nodes examples/story-1/nodes.yaml \
	  -f examples/story-1/classes.yaml -f examples/story-1/pods.yaml
	$(BIN)/winpod check --layout $(DEMO)/images --nodes examples/story-2/nodes.yaml \
	  -f examples/story-2/classes.yaml -f examples/story-2/pods.yaml || true
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory demo-run; else \
	  echo "As root this would also run a Windows program: sudo make demo"; fi

# Run in a separate network namespace, so that the demo does not change the network of the machine.
demo-run: $(READY)
	tools/debian-packages mmdebstrap runc conmon containernetworking-plugins iptables iproute2 curl \
	  e2fsprogs
	$(BIN)/winpod base build --root $(CURDIR)/$(DEMO)/root
	PATH="$(CURDIR)/$(BIN):$$PATH" unshare --net examples/run-containers \
	  $(CURDIR)/$(DEMO)/root $(DEMO)/images
	PATH="$(CURDIR)/$(BIN):$$PATH" unshare --net examples/play-web \
	  $(CURDIR)/$(DEMO)/root $(DEMO)/images

test: lint unit

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The limit is 75 %: code that needs Wine or a cluster is tested by `make e2e`, without coverage.
unit: $(READY)
	tools/debian-packages docker-registry apache2-utils openssl skopeo umoci buildah \
	  libhivex-bin libwin-hivex-perl containernetworking-plugins iproute2 iptables runc conmon \
	  mmdebstrap zstd
	$(BIN)/pytest -n auto --dist worksteal --cov --cov-report= --cov-fail-under=75 --durations=15 \
	  || $(BIN)/pytest $(AGAIN)

e2e: $(READY)
	tools/debian-packages openssl docker-registry apache2-utils mmdebstrap runc conmon iproute2 \
	  containernetworking-plugins iptables libhivex-bin libwin-hivex-perl binutils curl e2fsprogs procps \
	  libfaketime chromium fonts-dejavu-core openssh-server openssh-client ntfs-3g
	$(BIN)/pytest tests/e2e -m alone --durations=5 --basetemp "$$(mktemp -d /tmp/e2e.XXXX)" \
	  || $(BIN)/pytest tests/e2e -m alone $(AGAIN) --basetemp "$$(mktemp -d /tmp/e2e.XXXX)"
	$(BIN)/pytest tests/e2e -m "not alone" -n 2 --dist loadfile --durations=15 \
	  --basetemp "$$(mktemp -d /tmp/e2e.XXXX)" \
	  || $(BIN)/pytest tests/e2e -m "not alone" $(AGAIN) --basetemp "$$(mktemp -d /tmp/e2e.XXXX)"

conformance: $(READY)
	tools/debian-packages docker-registry mmdebstrap runc conmon iproute2 iptables \
	  containernetworking-plugins e2fsprogs
	$(BIN)/python -m tests.conformance
	$(BIN)/python -m tests.conformance --hypervisor --smoke

# Run every pod in a microVM, which is slow if it is emulated.
conformance-hypervisor: $(READY)
	tools/debian-packages docker-registry mmdebstrap runc conmon iproute2 iptables \
	  containernetworking-plugins e2fsprogs
	$(BIN)/python -m tests.conformance --hypervisor

# Boot Debian 12 and 13 with their own kernels under emulation. KERNEL=6.1 or 6.12 selects one of
# them, KERNEL=5.10 an unsupported kernel.
KERNEL ?=
FRESH_MACHINE := mmdebstrap e2fsprogs util-linux runc openssl iproute2

fresh-machine: $(READY)
	tools/debian-packages $(FRESH_MACHINE)
	$(BIN)/python -m tests.fresh_machine $(if $(KERNEL),--kernel $(KERNEL))

fresh-machine-short: $(READY)
	tools/debian-packages $(FRESH_MACHINE)
	$(BIN)/python -m tests.fresh_machine --short --parallel 2 $(if $(KERNEL),--kernel $(KERNEL))

bench: $(READY)
	$(BIN)/python -m benchmarks.check
	$(BIN)/python -m benchmarks.unpack
	tools/debian-packages docker-registry containerd pigz zstd mmdebstrap runc
	$(BIN)/python -m benchmarks.pull
	$(BIN)/python -m benchmarks.base
	tools/debian-packages conmon containernetworking-plugins iptables iproute2
	unshare --net $(BIN)/python -m benchmarks.runtime
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.nodes
	$(BIN)/python -m benchmarks.operator
	$(BIN)/python -m benchmarks.admission
	$(BIN)/python -m benchmarks.deciding
	$(BIN)/python -m benchmarks.upgrade
	$(BIN)/python -m benchmarks.instances
	unshare --net $(BIN)/python -m benchmarks.pods
	WINPOD_ALLOW_EMULATION=1 unshare --net $(BIN)/python -m benchmarks.hypervisor

docs: $(READY)
	$(BIN)/python -m winpod.windows.pod_api.doc > docs/pod-api-on-windows.md
	$(BIN)/python -m winpod.labels > docs/labels.md
	$(BIN)/python -m tests.support.e2e.programs_table > docs/programs.md

# Generate the chart's CRDs from the operator's, and the plain manifests from the chart.
manifests: $(READY)
	$(BIN)/python -m tests.e2e.helm

proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src \
	  winpod/cri/proto/api.proto

protocol: $(READY)
	$(BIN)/python native/generate_protocol.py

# Generate models of the Kubernetes version in tests/e2e/controlplane/go.mod; requires Go.
models: $(READY)
	$(BIN)/python tools/generate_models.py
	$(BIN)/ruff format --quiet src/winpod/k8s/models

lock: $(READY)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --no-strip-extras --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	  --extra all --group dev --output-file requirements.lock pyproject.toml

$(READY): requirements.lock pyproject.toml
	python3 -c "import ensurepip" 2>/dev/null || tools/debian-packages python3-venv
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) $(DEMO) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
