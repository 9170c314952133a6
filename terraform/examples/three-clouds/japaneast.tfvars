# Two gateways in Azure's japaneast, in a network of their own.
subscription_id = "<subscription>"
location        = "japaneast"
region          = "japaneast"
jurisdiction    = "JP"
resource_group  = "nightside-japaneast"
policy_file     = "../../../examples/three-clouds/policies/japaneast.yaml"
latitude        = 35.7
longitude       = 139.8
cidr            = "10.32.0.0/20"

slots = {
  a = { zone = "1", secrets = ["<secret of japaneasta>"] }
  b = { zone = "2", secrets = ["<secret of japaneastb>"] }
}
vault_id       = "<key vault>"
shared_secrets = ["<secret of all gateways in japaneast>"]
machine_image  = "<machine image in Azure>"
machine_type   = "<machine type of gateways in Azure>"
ssh_public_key = "<public key>"
package        = { file = "<package file>", sha256 = "<package sha256>" }

engines = { cidrs = ["<network of engines in japaneast>"], ports = [8000] }
replicas = {
  japaneasta = [{ id = "japaneast-vllm-0", url = "<engine 0 in japaneast>", models = ["<model>"] }]
  japaneastb = [{ id = "japaneast-vllm-1", url = "<engine 1 in japaneast>", models = ["<model>"] }]
}
mesh_folder = "../../../examples/three-clouds/mesh"
tags        = { project = "nightside" }
