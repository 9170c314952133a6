output "controllers" {
  description = "For `controllers` of all regions."
  value       = [for name, address in local.addresses : "${address}:7090"]
}

output "groups" {
  description = "By controller, its auto scaling group."
  value       = { for name, slot in module.slot : name => slot.group }
}

output "files" {
  description = "By controller, its file in object storage."
  value       = local.files
}

output "rights" {
  description = "By controller, its machine's permissions, as an IAM policy."
  value       = { for name, slot in module.slot : name => slot.policy }
}
