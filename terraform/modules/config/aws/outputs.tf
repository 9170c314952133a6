output "bucket" {
  description = "The bucket's name."
  value       = aws_s3_bucket.this.bucket
}

output "manifest" {
  description = "Key of the object that names the package."
  value       = "package"
}
