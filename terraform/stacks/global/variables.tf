variable "aws_region" {
  type        = string
  description = "Where the controllers and their table are."
}

variable "name" {
  type        = string
  description = "The mesh's, for the names of what is made."
  default     = "nightside"
}

variable "domain" {
  type        = string
  description = "The one name that clients know, such as llm.example.net."
}

variable "existing_zone_id" {
  type        = string
  description = "A hosted zone that is there already, of the name itself or of one above it; null: one is made."
  default     = null
}

variable "parent_zone_id" {
  type        = string
  description = "The hosted zone above, where that is in this account, to delegate the new one from; null: delegate it by hand."
  default     = null
}

variable "network" {
  type = object({
    cidr    = optional(string)
    vpc_id  = optional(string)
    subnets = optional(map(string))
  })
  description = "A `cidr` for a network to be made, such as 10.20.0.0/20; or `vpc_id` and `subnets`, by availability zone, of one that is there."
  validation {
    condition     = (var.network.cidr != null) != (var.network.vpc_id != null && var.network.subnets != null)
    error_message = "Either a cidr, or a vpc_id with subnets."
  }
}

variable "controllers" {
  type = map(object({
    zone       = string
    private_ip = optional(string)
    secrets    = list(string)
    generation = optional(number, 1)
  }))
  description = "By name, in which availability zone each is, and the ARNs of its secrets (tls/controller.pem, tls/controller.key, tls/roots.pem). Two at least, in two zones. Raising one's `generation` replaces its machine."
}

variable "shared_secrets" {
  type        = list(string)
  description = "ARNs of secrets that all controllers may read, such as one with tls/gateways-ca.pem."
  default     = []
}

variable "secrets_kms_key_arn" {
  type        = string
  description = "The key that the secrets are encrypted with, where that is one of the account's own."
  default     = null
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own for the table, disks, the bucket and logs; null: AWS's keys."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the controllers' machine image, in aws_region."
}

variable "machine_type" {
  type        = string
  description = "Of the controllers' machines; of the image's architecture."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make and its SHA-256."
}

variable "mesh_folder" {
  type        = string
  description = "A folder with what the other roots said: REGION.peers.json for each region, by which gateways are let in. null: there is none, and the variables below say it."
  default     = null
}

variable "gateways" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "All gateways of the mesh: `peers` of all regions' outputs. Empty at first; the second apply lets them in."
  default     = {}
}

variable "regions_file" {
  type        = string
  description = "The table of regions, a file where Terraform runs; the same that the regions' policies name."
}

variable "aws_regions" {
  type        = map(string)
  description = "The AWS region nearest to each of the mesh's that has another name."
  default     = {}
}

variable "closed_jurisdictions" {
  type        = map(list(string))
  description = "Jurisdictions whose clients are told of no gateways elsewhere, with the places they are in: {EU = [\"AT\", \"BE\", …]}."
  default     = {}
}

variable "health_checks" {
  type        = string
  description = "What Route53 asks each address by itself: none, tcp or https."
  default     = "https"
}

variable "probe_ca" {
  type        = bool
  description = "Do gateways' certificates for clients come from an authority of your own, tls/gateways-ca.pem of a shared secret?"
  default     = false
}

variable "recovery" {
  type        = string
  description = "What is done with the AWS machine of a gateway that is down: none, replace or reboot."
  default     = "replace"
}

variable "settings" {
  type        = any
  description = "Further sections of the controllers' file."
  default     = {}
}

variable "deletion_protection" {
  type        = bool
  description = "Of the table."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
