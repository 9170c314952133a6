# The single parts of a mesh: its name, its controllers and their table. Regions continue without any of them.

module "network" {
  source = "../../modules/network/aws"
  count  = var.network.cidr == null ? 0 : 1

  name  = var.name
  cidr  = var.network.cidr
  zones = distinct([for controller in values(var.controllers) : controller.zone])
  tags  = var.tags
}

locals {
  # regions' outputs, as `terraform output -json` writes them
  files = var.mesh_folder == null ? [] : [for name in fileset(var.mesh_folder, "*.peers.json") : jsondecode(file("${var.mesh_folder}/${name}"))]

  vpc_id  = var.network.cidr == null ? var.network.vpc_id : module.network[0].vpc_id
  subnets = var.network.cidr == null ? var.network.subnets : module.network[0].subnets
}

module "dns" {
  source = "../../modules/dns/route53"

  name             = var.domain
  existing_zone_id = var.existing_zone_id
  parent_zone_id   = var.parent_zone_id
  tags             = var.tags
}

module "store" {
  source = "../../modules/store/dynamodb"

  name                = var.name
  kms_key_arn         = var.kms_key_arn
  deletion_protection = var.deletion_protection
  tags                = var.tags
}

module "controllers" {
  source = "../../modules/controller/aws"

  name                 = var.name
  vpc_id               = local.vpc_id
  slots                = { for name, each in var.controllers : name => merge(each, { subnet_id = local.subnets[each.zone] }) }
  shared_secrets       = var.shared_secrets
  secrets_kms_key_arn  = var.secrets_kms_key_arn
  kms_key_arn          = var.kms_key_arn
  machine_image        = var.machine_image
  machine_type         = var.machine_type
  package              = var.package
  table                = { name = module.store.name, arn = module.store.arn }
  zone                 = { id = module.dns.zone_id, name = var.domain }
  regions_file         = var.regions_file
  aws_regions          = var.aws_regions
  closed_jurisdictions = var.closed_jurisdictions
  health_checks        = var.health_checks
  probe_ca             = var.probe_ca
  recovery             = var.recovery
  gateways             = merge(var.gateways, local.files...)
  settings             = var.settings
  tags                 = var.tags
}
