"""Local control plane behind `winpod play`: object store, controllers, scheduler, proxy, nodes."""
