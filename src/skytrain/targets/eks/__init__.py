"""Jobs and endpoints on a Kubernetes cluster of EKS."""
