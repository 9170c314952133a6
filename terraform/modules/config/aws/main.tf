# One place for configuration and packages, which machines read as they boot and every few minutes.

resource "aws_s3_bucket" "this" {
  bucket_prefix = "${var.name}-"
  force_destroy = true # Terraform has put all its contents there
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id
  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id
  rule {
    id     = "old"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration {
      noncurrent_days = 90
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyEncryptedOnTheWay"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
  depends_on = [aws_s3_bucket_public_access_block.this]
}

resource "aws_s3_object" "package" {
  bucket      = aws_s3_bucket.this.id
  key         = "packages/${var.package.sha256}.tar.gz"
  source      = var.package.file
  source_hash = var.package.sha256

  lifecycle {
    precondition {
      condition     = filesha256(var.package.file) == var.package.sha256
      error_message = "The SHA-256 of ${var.package.file} is not the pinned one."
    }
  }
}

resource "aws_s3_object" "manifest" {
  bucket  = aws_s3_bucket.this.id
  key     = "package"
  content = "${var.package.sha256} packages/${var.package.sha256}.tar.gz\n"
}

resource "aws_s3_object" "this" {
  for_each = var.objects
  bucket   = aws_s3_bucket.this.id
  key      = each.key
  content  = each.value
}
