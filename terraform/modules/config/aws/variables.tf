variable "name" {
  type        = string
  description = "Prefix of the bucket's name."
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,35}$", var.name))
    error_message = "Up to 36 small letters, digits and dashes."
  }
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: its path on the machine that runs Terraform, and its SHA-256."
}

variable "objects" {
  type        = map(string)
  description = "Keys to contents."
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own; null: AWS's."
  default     = null
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
}
