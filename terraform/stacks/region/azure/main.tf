# One region in Azure: its gateways, and a network where there is none. Its state is its own: a fault here stays in this
# region.

resource "azurerm_resource_group" "this" {
  name     = var.resource_group
  location = var.location
  tags     = var.tags
}

module "network" {
  source = "../../../modules/network/azure"
  count  = var.cidr == null ? 0 : 1

  name           = "nightside-${var.region}"
  location       = var.location
  resource_group = azurerm_resource_group.this.name
  cidr           = var.cidr
  tags           = var.tags
}

# other roots' outputs, as `terraform output -json` writes them
locals {
  files       = var.mesh_folder == null ? [] : [for name in fileset(var.mesh_folder, "*.peers.json") : jsondecode(file("${var.mesh_folder}/${name}"))]
  peers       = { for name, each in merge(var.peers, local.files...) : name => each if each.region != var.region }
  controllers = concat(var.controllers, try(jsondecode(file("${var.mesh_folder}/controllers.json")), []))
}

module "gateways" {
  source = "../../../modules/gateway/azure"

  region                  = var.region
  jurisdiction            = var.jurisdiction
  location                = var.location
  resource_group          = azurerm_resource_group.this.name
  subnet_id               = var.cidr == null ? var.existing_subnet_id : module.network[0].subnet_id
  slots                   = var.slots
  shared_secrets          = var.shared_secrets
  vault_id                = var.vault_id
  machine_image           = var.machine_image
  machine_type            = var.machine_type
  ssh_public_key          = var.ssh_public_key
  package                 = var.package
  policy_file             = var.policy_file
  replicas                = var.replicas
  settings                = var.settings
  has_keys                = var.has_keys
  peers                   = local.peers
  controllers             = local.controllers
  latitude                = var.latitude
  longitude               = var.longitude
  client_cidrs            = var.client_cidrs
  engines                 = var.engines
  disk_gib                = var.disk_gib
  client_idle_timeout_min = var.client_idle_timeout_min
  disk_encryption_set_id  = var.disk_encryption_set_id
  log_workspace_id        = var.log_workspace_id
  tags                    = var.tags
}
