# A pair of controllers, or more, in different zones: one leads, and the others stand by on the same table.

data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
data "aws_region" "this" {}

locals {
  prefix    = "${var.name}-controllers"
  addresses = { for name, _ in var.slots : name => aws_eip.slot[name].public_ip }
  gateways  = toset([for each in values(var.gateways) : split(":", each.address)[0]])
  account = {
    id        = data.aws_caller_identity.this.account_id
    partition = data.aws_partition.this.partition
    region    = data.aws_region.this.region
  }

  own = {
    for name, _ in var.slots : name => {
      controller = name
      regions    = "regions.yaml"
      store      = { kind = "dynamodb", dynamodb = { table = var.table.name, region = local.account.region } }
      naming     = { zone = var.zone.name }
      listen     = { grpc = "0.0.0.0:7090", admin = "127.0.0.1:9091" }
      link       = { tls = { certificate = "tls/controller.pem", key = "tls/controller.key", roots = "tls/roots.pem" } }
      decisions  = { closed_jurisdictions = keys(var.closed_jurisdictions) }
      probes     = { ca_file = var.probe_ca ? "tls/gateways-ca.pem" : null }
      records = {
        provider = "route53"
        route53 = {
          hosted_zone   = var.zone.id
          regions       = var.aws_regions
          locations     = var.closed_jurisdictions
          health_checks = { kind = var.health_checks }
        }
      }
      recovery = {
        kind = var.recovery == "none" ? "none" : "aws"
        aws = {
          action  = var.recovery == "none" ? "replace" : var.recovery
          regions = var.aws_regions
        }
      }
      history = { path = "/var/lib/nightside/controller.history" }
      reload  = { controller_file = true }
      logging = { format = "json" }
    }
  }

  files = {
    for name, own in local.own : name => yamlencode(merge(own, {
      for key, more in var.settings : key => try(merge(own[key], more), more)
    }))
  }
}

module "slot" {
  source   = "../../slot/aws"
  for_each = var.slots

  name                 = each.key
  role                 = "controller"
  zone                 = each.value.zone
  network_interface_id = aws_network_interface.slot[each.key].id
  machine_image        = var.machine_image
  machine_type         = var.machine_type
  generation           = each.value.generation
  disk_gib             = var.disk_gib
  kms_key_arn          = var.kms_key_arn
  config_bucket        = module.config.bucket
  manifest             = module.config.manifest
  objects              = { "controller.yaml" = "${each.key}/controller.yaml", "regions.yaml" = "regions.yaml" }
  secrets              = concat(each.value.secrets, var.shared_secrets)
  decryption_keys      = distinct(compact([var.kms_key_arn, var.secrets_kms_key_arn]))
  statements           = concat(local.statements, var.collector ? local.collector_statements : [])
  extra_files          = var.collector ? local.collector_files[each.key] : {}
  account              = local.account
  tags                 = var.tags
}

module "config" {
  source = "../../config/aws"

  name        = local.prefix
  package     = var.package
  kms_key_arn = var.kms_key_arn
  objects = merge(
    { "regions.yaml" = file(var.regions_file) },
    { for name, text in local.files : "${name}/controller.yaml" => text },
  )
  tags = var.tags
}

# Addresses

resource "aws_network_interface" "slot" {
  for_each        = var.slots
  subnet_id       = each.value.subnet_id
  private_ips     = each.value.private_ip == null ? null : [each.value.private_ip]
  security_groups = [aws_security_group.this.id]
  description     = "nightside ${each.key}"
  tags            = merge(var.tags, { Name = "nightside-${each.key}" })
}

resource "aws_eip" "slot" {
  for_each          = var.slots
  domain            = "vpc"
  network_interface = aws_network_interface.slot[each.key].id
  tags              = merge(var.tags, { Name = "nightside-${each.key}" })
}

resource "aws_security_group" "this" {
  name_prefix = "${local.prefix}-"
  description = "Controllers"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = local.prefix })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "gateways" {
  for_each          = local.gateways
  security_group_id = aws_security_group.this.id
  description       = "A gateway"
  cidr_ipv4         = "${each.value}/32"
  ip_protocol       = "tcp"
  from_port         = 7090
  to_port           = 7090
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.this.id
  description       = "AWS: names, the store, objects, secrets, logs"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "probes" {
  for_each          = local.gateways
  security_group_id = aws_security_group.this.id
  description       = "A gateway's /health"
  cidr_ipv4         = "${each.value}/32"
  ip_protocol       = "tcp"
  from_port         = 8443
  to_port           = 8443
  tags              = var.tags
}
