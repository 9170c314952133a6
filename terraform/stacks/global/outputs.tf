output "controllers" {
  description = "For `controllers` of every region's variables."
  value       = module.controllers.controllers
}

output "name_servers" {
  description = "Name servers for the NS record in the parent zone, unless the name is delegated already."
  value       = module.dns.name_servers
}

output "zone_id" {
  description = "The hosted zone: `aws route53 list-resource-record-sets --hosted-zone-id …` shows the controllers' records."
  value       = module.dns.zone_id
}

output "groups" {
  description = "By controller, its auto scaling group, which leads to its machine."
  value       = module.controllers.groups
}
