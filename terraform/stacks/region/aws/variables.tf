variable "aws_region" {
  type        = string
  description = "AWS's name of the region."
}

variable "network" {
  type = object({
    cidr    = optional(string)
    vpc_id  = optional(string)
    subnets = optional(map(string))
  })
  description = "A `cidr` for a new network, such as 10.21.0.0/20; or `vpc_id` and `subnets`, by availability zone, of an existing one (usually the engines')."
  validation {
    condition     = (var.network.cidr != null) != (var.network.vpc_id != null && var.network.subnets != null)
    error_message = "Either a cidr, or a vpc_id with subnets."
  }
}

variable "slots" {
  type = map(object({
    zone             = string
    private_ip       = optional(string)
    secrets          = list(string)
    health_host      = optional(string)
    generation       = optional(number, 1)
    existing_disk_id = optional(string)
  }))
  description = "Each gateway, by a short name appended to the region's: its availability zone, the ARNs of its secrets, and the other fields of modules/gateway/aws."
}

variable "mesh_folder" {
  type        = string
  description = "A folder with the other roots' outputs: REGION.peers.json for each region, and controllers.json. null: the variables below give them."
  default     = null
}

variable "region" {
  type        = string
  description = "The mesh's name of the region, as in its policy file and certificates; usually AWS's own name."
}

variable "jurisdiction" {
  type        = string
  description = "The region's jurisdiction, spelt as in the policy files."
}

variable "shared_secrets" {
  type        = list(string)
  description = "ARNs of secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "secrets_kms_key_arn" {
  type        = string
  description = "The key that encrypts the secrets, if the account has its own; null: AWS's."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image. It needs what modules/machine/README.md lists; nothing here looks one up: the choice of image is yours."
}

variable "machine_type" {
  type        = string
  description = "Machine type of the image's architecture. A gateway uses one core; docs/how_to/operations.md states its capacity."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: its path on the machine that runs Terraform, and its SHA-256."
}

variable "policy_file" {
  type        = string
  description = "The region's residency policy, a file on the machine that runs Terraform. The table of regions that it names, `regions.yaml` beside it, is uploaded too."
}

variable "replicas" {
  type        = any
  description = "By gateway (such as us-east-1a), its engines, in the form of `replicas` of a region file."
  default     = {}
}

variable "settings" {
  type        = any
  description = "Further sections of the region files, such as `placement` or `dns_replicas`."
  default     = {}
}

variable "has_keys" {
  type        = bool
  description = "Is there a keys.yaml among the secrets? Without one a gateway refuses to serve beyond loopback, unless `settings` says `insecure`."
  default     = true
}

variable "peers" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "Gateways of all other regions: `peers` of their roots' outputs."
  default     = {}
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
}

variable "latitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
}

variable "longitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
}

variable "client_cidrs" {
  type        = list(string)
  description = "Networks of clients."
  default     = ["0.0.0.0/0"]
}

variable "engines" {
  type = object({
    cidrs = list(string)
    ports = optional(list(number), [8000])
  })
  description = "Networks of engines: gateways may connect only to these, to peers, to controllers and to AWS."
}

variable "client_tls" {
  type = object({
    kind            = string
    certificate_arn = optional(string)
    policy          = optional(string, "ELBSecurityPolicy-TLS13-1-2-2021-06")
  })
  description = "Component that terminates clients' TLS. `files`: the gateway, by tls/clients.pem of its secrets; the balancer passes bytes on. `acm`: the balancer, by a certificate that ACM renews; it connects to the gateway by TLS again, with tls/clients.pem, which it does not verify."
  default     = { kind = "files" }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "How long the balancer keeps an idle connection. A model may think for minutes before its first token: keep it above `limits.first_token_deadline`. With `acm` AWS fixes it at 350."
  default     = 900
}

variable "disk_gib" {
  type        = number
  description = "Size of each slot's disk, which holds the last snapshot, usage and, if enabled, audit records."
  default     = 20
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own for disks, the bucket and logs; null: AWS's keys."
  default     = null
}

variable "log_days" {
  type        = number
  description = "How long CloudWatch keeps logs."
  default     = 365
}

variable "collector" {
  type        = bool
  description = "Configure the CloudWatch agent of the machine image: logs, and metrics scraped on loopback."
  default     = true
}

variable "deletion_protection" {
  type        = bool
  description = "Deletion protection of the balancer, whose addresses clients and name servers know."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
