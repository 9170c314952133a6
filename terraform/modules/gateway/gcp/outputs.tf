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
  description = "Addresses of the balancer: what the mesh's one name tells clients. Without a controller, put them into the name yourself."
  value       = [local.clients]
}

output "groups" {
  description = "By gateway, its managed instance group."
  value       = { for name, group in google_compute_instance_group_manager.slot : name => group.name }
}

output "config_bucket" {
  description = "The bucket that machines read configuration and packages from."
  value       = google_storage_bucket.config.name
}

output "region_files" {
  description = "By gateway, its region file as it lies in object storage."
  value       = module.region_file.files
}
