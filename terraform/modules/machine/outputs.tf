output "script" {
  description = "A shell script for the machine's first boot; it may be run again."
  value       = local.script
}
