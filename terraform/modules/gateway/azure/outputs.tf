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
  value       = [azurerm_public_ip.clients.ip_address]
}

output "machines" {
  description = "By gateway, its machine's id."
  value       = { for name, machine in azurerm_linux_virtual_machine.slot : name => machine.id }
}

output "config_container" {
  description = "The container from which machines read configuration and packages."
  value       = azurerm_storage_container.config.id
}

output "region_files" {
  description = "By gateway, its region file in object storage."
  value       = module.region_file.files
}
