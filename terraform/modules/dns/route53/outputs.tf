output "zone_id" {
  description = "For `records.route53.hosted_zone`."
  value       = var.existing_zone_id == null ? aws_route53_zone.this[0].zone_id : var.existing_zone_id
}

output "name_servers" {
  description = "Name servers for the NS record in the parent zone; empty for an existing zone."
  value       = var.existing_zone_id == null ? aws_route53_zone.this[0].name_servers : []
}
