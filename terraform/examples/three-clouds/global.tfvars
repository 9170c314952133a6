# The name, the controllers and their table, in eu-west-1.
aws_region = "eu-west-1"
domain     = "<domain>"
network    = { cidr = "10.20.0.0/20" }

controllers = {
  controller-1 = { zone = "eu-west-1a", secrets = ["<secret of controller-1>"] }
  controller-2 = { zone = "eu-west-1b", secrets = ["<secret of controller-2>"] }
}
regions_file  = "../../examples/three-clouds/policies/regions.yaml"
machine_image = "<machine image in eu-west-1>"
machine_type  = "<machine type of controllers>"
package       = { file = "<package file>", sha256 = "<package sha256>" }

# clients in the EU are led only to gateways there
closed_jurisdictions = {
  EU = ["AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT", "LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK"]
}
probe_ca       = true
shared_secrets = ["<secret of all controllers>"]
# Route53 knows latency by AWS's regions only: each region of another cloud is mapped to the nearest one
aws_regions = { europe-west1 = "eu-central-1", japaneast = "ap-northeast-1" }
recovery    = "replace" # of machines in AWS; Google's groups and Azure recover their own
mesh_folder = "../../examples/three-clouds/mesh"
tags        = { project = "nightside" }
