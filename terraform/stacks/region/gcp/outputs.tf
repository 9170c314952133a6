output "peers" {
  description = "This region's gateways, for `peers` of all other regions' variables and for `gateways` of the global ones."
  value       = module.gateways.peers
}

output "client_addresses" {
  description = "Addresses of the balancer: what the mesh's one name tells clients. Without a controller, put them into the name yourself."
  value       = module.gateways.client_addresses
}

output "groups" {
  description = "By gateway, its managed instance group."
  value       = module.gateways.groups
}

output "config_bucket" {
  description = "The bucket that machines read configuration and packages from."
  value       = module.gateways.config_bucket
}
