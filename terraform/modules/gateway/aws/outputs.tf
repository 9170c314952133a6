output "peers" {
  description = "This region's gateways, for `peers` of all other regions."
  value = {
    for name, address in local.addresses : name => {
      region       = var.region
      jurisdiction = var.jurisdiction
      address      = "${address}:7070"
    }
  }
}

output "client_addresses" {
  description = "Addresses of the balancer, which the mesh's one name resolves to. Without a controller, publish them yourself."
  value       = [for eip in aws_eip.clients : eip.public_ip]
}

output "groups" {
  description = "By gateway, its auto scaling group: `aws autoscaling start-instance-refresh --auto-scaling-group-name …` replaces its machine by hand."
  value       = { for name, slot in module.slot : name => slot.group }
}

output "region_files" {
  description = "By gateway, its region file in object storage."
  value       = module.region_file.files
}

output "scripts" {
  description = "By gateway, the script of its machine's first boot."
  value       = { for name, slot in module.slot : name => slot.script }
}

output "config_bucket" {
  description = "The bucket from which machines read configuration and packages."
  value       = module.config.bucket
}

output "rights" {
  description = "By gateway, its machine's permissions, as an IAM policy."
  value       = { for name, slot in module.slot : name => slot.policy }
}
