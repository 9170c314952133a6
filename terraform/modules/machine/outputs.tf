output "script" {
  description = "A shell script for the machine's first boot; running it again does no harm."
  value       = local.script
}
