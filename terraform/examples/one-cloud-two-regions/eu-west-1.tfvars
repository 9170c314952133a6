# Two gateways in eu-west-1, in a network of their own.
aws_region   = "eu-west-1"
region       = "eu-west-1"
jurisdiction = "EU"
policy_file  = "../../../../policies/eu-west-1.yaml"
latitude     = 53.3
longitude    = -6.3
network      = { cidr = "10.21.0.0/20" }

slots = {
  a = { zone = "eu-west-1a", secrets = ["<secret of eu-west-1a>"] }
  b = { zone = "eu-west-1b", secrets = ["<secret of eu-west-1b>"] }
}
shared_secrets = ["<secret of all gateways in eu-west-1>"]
machine_image  = "<machine image in eu-west-1>"
machine_type   = "<machine type of gateways>"
package        = { file = "<package file>", sha256 = "<package sha256>" }

# each engine belongs to one gateway; the other one reaches it through that one
engines = { cidrs = ["<network of engines in eu-west-1>"], ports = [8000] }
replicas = {
  eu-west-1a = [{ id = "eu-west-1-vllm-0", url = "<engine 0 in eu-west-1>", models = ["<model>"] }]
  eu-west-1b = [{ id = "eu-west-1-vllm-1", url = "<engine 1 in eu-west-1>", models = ["<model>"] }]
}
mesh_folder = "../../../examples/one-cloud-two-regions/mesh"
tags        = { project = "nightside" }
