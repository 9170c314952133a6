# A region's gateways in AWS: one slot for each, with a name, an address, a disk and secrets of its own, kept when the
# machine in it is replaced.

data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
data "aws_region" "this" {}

locals {
  slots  = { for name, slot in var.slots : "${var.region}${name}" => slot }
  prefix = "nightside-${var.region}"
  tags   = merge(var.tags, { "nightside:region" = var.region })

  addresses = { for name, slot in local.slots : name => aws_eip.slot[name].public_ip }

  account = {
    id        = data.aws_caller_identity.this.account_id
    partition = data.aws_partition.this.partition
    region    = data.aws_region.this.region
  }
  controller_ips = toset([for each in var.controllers : split(":", each)[0]])
  peer_ips       = toset([for each in values(var.peers) : split(":", each.address)[0]])
}

module "region_file" {
  source = "../../region_file"

  region       = var.region
  jurisdiction = var.jurisdiction
  gateways = {
    for name, slot in local.slots : name => {
      peer_address   = "${local.addresses[name]}:7070"
      health_host    = coalesce(slot.health_host, local.addresses[name])
      client_address = [for eip in aws_eip.clients : eip.public_ip]
    }
  }
  peers       = var.peers
  controllers = var.controllers
  latitude    = var.latitude
  longitude   = var.longitude
  replicas    = var.replicas
  settings    = var.settings
  has_keys    = var.has_keys
}

module "slot" {
  source   = "../../slot/aws"
  for_each = local.slots

  name                 = each.key
  role                 = "gateway"
  zone                 = each.value.zone
  network_interface_id = aws_network_interface.slot[each.key].id
  machine_image        = var.machine_image
  machine_type         = var.machine_type
  generation           = each.value.generation
  existing_disk_id     = each.value.existing_disk_id
  disk_gib             = var.disk_gib
  kms_key_arn          = var.kms_key_arn
  target_group_arns    = [aws_lb_target_group.clients.arn]
  config_bucket        = module.config.bucket
  manifest             = module.config.manifest
  objects              = { "region.yaml" = "gateways/${each.key}/region.yaml", "policy.yaml" = "policy.yaml", "regions.yaml" = "regions.yaml" }
  secrets              = concat(each.value.secrets, var.shared_secrets)
  decryption_keys      = distinct(compact([var.kms_key_arn, var.secrets_kms_key_arn]))
  statements           = var.collector ? local.collector_statements : []
  extra_files          = var.collector ? local.collector_files[each.key] : {}
  account              = local.account
  tags                 = local.tags
}

locals {
  beside = "${dirname(var.policy_file)}/regions.yaml"
  table  = fileexists(local.beside) ? file(local.beside) : "version: 1\nregions: {}\n"
}

module "config" {
  source = "../../config/aws"

  name        = local.prefix
  package     = var.package
  kms_key_arn = var.kms_key_arn
  objects = merge(
    { "policy.yaml" = file(var.policy_file), "regions.yaml" = local.table },
    { for name, text in module.region_file.files : "gateways/${name}/region.yaml" => text },
  )
  tags = local.tags
}

# Addresses

resource "aws_network_interface" "slot" {
  for_each        = local.slots
  subnet_id       = each.value.subnet_id
  private_ips     = each.value.private_ip == null ? null : [each.value.private_ip]
  security_groups = [aws_security_group.gateways.id]
  description     = "nightside ${each.key}"
  tags            = merge(local.tags, { Name = "nightside-${each.key}" })
}

resource "aws_eip" "slot" {
  for_each          = local.slots
  domain            = "vpc"
  network_interface = aws_network_interface.slot[each.key].id
  tags              = merge(local.tags, { Name = "nightside-${each.key}" })
}
