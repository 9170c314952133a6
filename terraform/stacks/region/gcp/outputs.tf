output "peers" {
  description = "This region's gateways, for `peers` of all other regions' variables and for `gateways` of the global ones."
  value       = module.gateways.peers
}

output "client_addresses" {
  description = "Addresses of the balancer, which the mesh's one name resolves to. Without a controller, publish them yourself."
  value       = module.gateways.client_addresses
}

output "groups" {
  description = "By gateway, its managed instance group."
  value       = module.gateways.groups
}

output "config_bucket" {
  description = "The bucket from which machines read configuration and packages."
  value       = module.gateways.config_bucket
}
