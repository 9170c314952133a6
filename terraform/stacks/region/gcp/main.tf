# One region in Google Cloud: its gateways, and a network where there is none. Its state is its own: a fault here stays
# in this region.

module "network" {
  source = "../../../modules/network/gcp"
  count  = var.cidr == null ? 0 : 1

  name       = "nightside-${var.region}"
  gcp_region = var.gcp_region
  cidr       = var.cidr
}

# other roots' outputs, as `terraform output -json` writes them
locals {
  files       = var.mesh_folder == null ? [] : [for name in fileset(var.mesh_folder, "*.peers.json") : jsondecode(file("${var.mesh_folder}/${name}"))]
  peers       = { for name, each in merge(var.peers, local.files...) : name => each if each.region != var.region }
  controllers = concat(var.controllers, try(jsondecode(file("${var.mesh_folder}/controllers.json")), []))
}

module "gateways" {
  source = "../../../modules/gateway/gcp"

  region                = var.region
  jurisdiction          = var.jurisdiction
  project               = var.project
  gcp_region            = var.gcp_region
  network               = var.cidr == null ? var.existing_network.network : module.network[0].network
  subnet                = var.cidr == null ? var.existing_network.subnet : module.network[0].subnet
  slots                 = var.slots
  shared_secrets        = var.shared_secrets
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
  disk_gib              = var.disk_gib
  client_tls            = var.client_tls
  client_idle_timeout_s = var.client_idle_timeout_s
  health_check_cidrs    = var.health_check_cidrs
  kms_key               = var.kms_key
  collector             = var.collector
  labels                = var.labels
}
