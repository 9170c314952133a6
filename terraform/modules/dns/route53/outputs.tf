output "zone_id" {
  description = "For `records.route53.hosted_zone`."
  value       = var.existing_zone_id == null ? aws_route53_zone.this[0].zone_id : var.existing_zone_id
}

output "name_servers" {
  description = "What the zone above has to name as NS of the one name; empty where the zone was there already."
  value       = var.existing_zone_id == null ? aws_route53_zone.this[0].name_servers : []
}
