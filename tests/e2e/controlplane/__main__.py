"""Build the control plane if it is absent, and print the directory of its binaries."""

import sys

from tests.e2e.controlplane.build import BuildFailed, binaries

try:
    print(binaries(say=lambda line: print(line, file=sys.stderr)))
except BuildFailed as problem:
    sys.exit(str(problem))
