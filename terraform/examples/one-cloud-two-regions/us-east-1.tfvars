# Two gateways in us-east-1, in a network of their own.
aws_region   = "us-east-1"
region       = "us-east-1"
jurisdiction = "US"
policy_file  = "../../../../policies/us-east-1.yaml"
latitude     = 39.0
longitude    = -77.5
network      = { cidr = "10.22.0.0/20" }

slots = {
  a = { zone = "us-east-1a", secrets = ["<secret of us-east-1a>"] }
  b = { zone = "us-east-1b", secrets = ["<secret of us-east-1b>"] }
}
shared_secrets = ["<secret of all gateways in us-east-1>"]
machine_image  = "<machine image in us-east-1>"
machine_type   = "<machine type of gateways>"
package        = { file = "<package file>", sha256 = "<package sha256>" }

# each engine belongs to one gateway; the other one reaches it through that one
engines = { cidrs = ["<network of engines in us-east-1>"], ports = [8000] }
replicas = {
  us-east-1a = [{ id = "us-east-1-vllm-0", url = "<engine 0 in us-east-1>", models = ["<model>"] }]
  us-east-1b = [{ id = "us-east-1-vllm-1", url = "<engine 1 in us-east-1>", models = ["<model>"] }]
}
mesh_folder = "../../../examples/one-cloud-two-regions/mesh"
tags        = { project = "nightside" }
