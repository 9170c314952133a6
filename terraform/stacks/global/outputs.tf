output "controllers" {
  description = "For `controllers` of every region's variables."
  value       = module.controllers.controllers
}

output "name_servers" {
  description = "What the zone above has to name as NS of the one name, where it is not delegated already."
  value       = module.dns.name_servers
}

output "zone_id" {
  description = "The hosted zone: `aws route53 list-resource-record-sets --hosted-zone-id …` shows what the controllers say."
  value       = module.dns.zone_id
}

output "groups" {
  description = "By controller, its auto scaling group, to find its machine by."
  value       = module.controllers.groups
}
