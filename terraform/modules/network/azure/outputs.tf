output "subnet_id" {
  description = "The subnet's id."
  value       = azurerm_subnet.this.id
}
