output "peers" {
  description = "This region's gateways, for `peers` of all other regions' variables and for `gateways` of the global ones."
  value       = module.gateways.peers
}

output "client_addresses" {
  description = "What the one name tells this region's clients."
  value       = module.gateways.client_addresses
}

output "groups" {
  description = "By gateway, its auto scaling group, to find its machine by."
  value       = module.gateways.groups
}

output "config_bucket" {
  description = "Where its machines read configuration and packages from."
  value       = module.gateways.config_bucket
}
