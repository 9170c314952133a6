# Two gateways in Google Cloud's europe-west1, in a network of their own.
project      = "<project>"
gcp_region   = "europe-west1"
region       = "europe-west1"
jurisdiction = "EU"
policy_file  = "../../../examples/three-clouds/policies/europe-west1.yaml"
latitude     = 50.4
longitude    = 3.8
cidr         = "10.31.0.0/20"

slots = {
  a = { zone = "europe-west1-b", secrets = ["<secret of europe-west1a>"] }
  b = { zone = "europe-west1-c", secrets = ["<secret of europe-west1b>"] }
}
shared_secrets = ["<secret of all gateways in europe-west1>"]
machine_image  = "<machine image in Google Cloud>"
machine_type   = "<machine type of gateways in Google Cloud>"
package        = { file = "<package file>", sha256 = "<package sha256>" }

engines = { cidrs = ["<network of engines in europe-west1>"], ports = [8000] }
replicas = {
  europe-west1a = [{ id = "europe-west1-vllm-0", url = "<engine 0 in europe-west1>", models = ["<model>"] }]
  europe-west1b = [{ id = "europe-west1-vllm-1", url = "<engine 1 in europe-west1>", models = ["<model>"] }]
}

# Google's balancer drops the state of a connection that is idle for a minute
settings    = { limits = { keep_alive_comments = "30s" } }
mesh_folder = "../../../examples/three-clouds/mesh"
labels      = { project = "nightside" }
