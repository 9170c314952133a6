# The hosted zone of the mesh's one name. Its records belong to the controller: none is declared here, so Terraform and
# the controller never change the same record.

resource "aws_route53_zone" "this" {
  count         = var.existing_zone_id == null ? 1 : 0
  name          = var.name
  comment       = "Nightside: its controllers write the records"
  force_destroy = var.force_destroy
  tags          = var.tags
}

data "aws_route53_zone" "this" {
  count   = var.existing_zone_id == null ? 0 : 1
  zone_id = var.existing_zone_id

  lifecycle {
    postcondition {
      condition     = trimsuffix(self.name, ".") == var.name || endswith(var.name, ".${trimsuffix(self.name, ".")}")
      error_message = "The zone ${self.name} is neither ${var.name} nor above it."
    }
  }
}

resource "aws_route53_record" "delegation" {
  count   = var.existing_zone_id == null && var.parent_zone_id != null ? 1 : 0
  zone_id = var.parent_zone_id
  name    = var.name
  type    = "NS"
  ttl     = 3600
  records = aws_route53_zone.this[0].name_servers
}
