# One region in AWS: its gateways, and a network where there is none. Its state is its own: a fault here stays in this
# region.

module "network" {
  source = "../../../modules/network/aws"
  count  = var.network.cidr == null ? 0 : 1

  name  = "nightside-${var.region}"
  cidr  = var.network.cidr
  zones = distinct([for slot in values(var.slots) : slot.zone])
  tags  = var.tags
}

locals {
  vpc_id  = var.network.cidr == null ? var.network.vpc_id : module.network[0].vpc_id
  subnets = var.network.cidr == null ? var.network.subnets : module.network[0].subnets
}

# other roots' outputs, as `terraform output -json` writes them
locals {
  files       = var.mesh_folder == null ? [] : [for name in fileset(var.mesh_folder, "*.peers.json") : jsondecode(file("${var.mesh_folder}/${name}"))]
  peers       = { for name, each in merge(var.peers, local.files...) : name => each if each.region != var.region }
  controllers = concat(var.controllers, try(jsondecode(file("${var.mesh_folder}/controllers.json")), []))
}

module "gateways" {
  source = "../../../modules/gateway/aws"

  vpc_id = local.vpc_id
  slots  = { for name, slot in var.slots : name => merge(slot, { subnet_id = local.subnets[slot.zone] }) }

  region                = var.region
  jurisdiction          = var.jurisdiction
  shared_secrets        = var.shared_secrets
  secrets_kms_key_arn   = var.secrets_kms_key_arn
  machine_image         = var.machine_image
  machine_type          = var.machine_type
  package               = var.package
  policy_file           = var.policy_file
  replicas              = var.replicas
  settings              = var.settings
  has_keys              = var.has_keys
  peers                 = local.peers
  controllers           = local.controllers
  latitude              = var.latitude
  longitude             = var.longitude
  client_cidrs          = var.client_cidrs
  engines               = var.engines
  client_tls            = var.client_tls
  client_idle_timeout_s = var.client_idle_timeout_s
  disk_gib              = var.disk_gib
  kms_key_arn           = var.kms_key_arn
  log_days              = var.log_days
  collector             = var.collector
  deletion_protection   = var.deletion_protection
  tags                  = var.tags
}
