variable "aws_region" {
  type        = string
  description = "AWS region of the controllers and their table."
}

variable "name" {
  type        = string
  description = "The mesh's name, a prefix of the resources' names."
  default     = "nightside"
}

variable "domain" {
  type        = string
  description = "The one name that clients know, such as llm.example.net."
}

variable "existing_zone_id" {
  type        = string
  description = "An existing hosted zone, of the name itself or of a parent; null: a new one is made."
  default     = null
}

variable "parent_zone_id" {
  type        = string
  description = "The parent zone, if it is in this account, to delegate the new zone from; null: delegate it by hand."
  default     = null
}

variable "network" {
  type = object({
    cidr    = optional(string)
    vpc_id  = optional(string)
    subnets = optional(map(string))
  })
  description = "A `cidr` for a new network, such as 10.20.0.0/20; or `vpc_id` and `subnets`, by availability zone, of an existing one."
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
  description = "By name, each controller's availability zone, and the ARNs of its secrets (tls/controller.pem, tls/controller.key, tls/roots.pem). At least two, in two zones. Raising one's `generation` replaces its machine."
}

variable "shared_secrets" {
  type        = list(string)
  description = "ARNs of secrets that all controllers may read, such as one with tls/gateways-ca.pem."
  default     = []
}

variable "secrets_kms_key_arn" {
  type        = string
  description = "The key that encrypts the secrets, if the account has its own."
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
  description = "Machine type of the controllers, of the image's architecture."
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
  description = "A folder with the other roots' outputs: REGION.peers.json for each region, from which the firewall admits gateways. null: the variables below give them."
  default     = null
}

variable "gateways" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "All gateways of the mesh: `peers` of all regions' outputs. Empty at first; the second apply admits them."
  default     = {}
}

variable "regions_file" {
  type        = string
  description = "The table of regions, a file on the machine that runs Terraform; the same that the regions' policies name."
}

variable "aws_regions" {
  type        = map(string)
  description = "The nearest AWS region, for each region of the mesh with another name."
  default     = {}
}

variable "closed_jurisdictions" {
  type        = map(list(string))
  description = "Jurisdictions whose clients are led only to gateways there, with their places: {EU = [\"AT\", \"BE\", …]}."
  default     = {}
}

variable "health_checks" {
  type        = string
  description = "Route53's own health check of each address: none, tcp or https."
  default     = "https"
}

variable "probe_ca" {
  type        = bool
  description = "Do gateways' certificates for clients come from an authority of your own, tls/gateways-ca.pem of a shared secret?"
  default     = false
}

variable "recovery" {
  type        = string
  description = "The action on the AWS machine of a gateway that is down: none, replace or reboot."
  default     = "replace"
}

variable "settings" {
  type        = any
  description = "Further sections of the controllers' file."
  default     = {}
}

variable "deletion_protection" {
  type        = bool
  description = "Deletion protection of the table."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
