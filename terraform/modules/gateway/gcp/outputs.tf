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
  value       = [local.clients]
}

output "groups" {
  description = "By gateway, its managed instance group."
  value       = { for name, group in google_compute_instance_group_manager.slot : name => group.name }
}

output "config_bucket" {
  description = "The bucket from which machines read configuration and packages."
  value       = google_storage_bucket.config.name
}

output "region_files" {
  description = "By gateway, its region file in object storage."
  value       = module.region_file.files
}
