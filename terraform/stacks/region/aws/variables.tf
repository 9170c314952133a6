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
  description = "A `cidr` for a network to be made, such as 10.21.0.0/20; or `vpc_id` and `subnets`, by availability zone, of one that is there (the engines', as a rule)."
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
  description = "By a short name that is put behind the region's, each gateway: its availability zone, the ARNs of its secrets, and what modules/gateway/aws says besides."
}

variable "mesh_folder" {
  type        = string
  description = "A folder with what the other roots said: REGION.peers.json for each region, and controllers.json. null: there is none, and the variables below say it."
  default     = null
}

variable "region" {
  type        = string
  description = "The mesh's name of the region, as its policy file and its certificates have it; AWS's own name, as a rule."
}

variable "jurisdiction" {
  type        = string
  description = "Whose law holds there, spelt as in the policy files."
}

variable "shared_secrets" {
  type        = list(string)
  description = "ARNs of secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "secrets_kms_key_arn" {
  type        = string
  description = "The key that the secrets are encrypted with, where that is one of the account's own; null: AWS's."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image. It needs what modules/machine/README.md lists; nothing here looks one up, since what it runs is yours to settle."
}

variable "machine_type" {
  type        = string
  description = "Of the image's architecture. A gateway uses one core; docs/how_to/operations.md has what that carries."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: where it lies on the machine that runs Terraform, and its SHA-256."
}

variable "policy_file" {
  type        = string
  description = "The region's residency policy, a file where Terraform runs; `regions.yaml` beside it, the table of regions that it names, goes with it."
}

variable "replicas" {
  type        = any
  description = "By gateway (such as us-east-1a), its engines, as `replicas` of a region file has them."
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
  description = "Where the region is, in degrees."
}

variable "longitude" {
  type        = number
  description = "Where the region is, in degrees."
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
  description = "Where engines are: gateways may connect there, and nowhere else but to peers, controllers and AWS."
}

variable "client_tls" {
  type = object({
    kind            = string
    certificate_arn = optional(string)
    policy          = optional(string, "ELBSecurityPolicy-TLS13-1-2-2021-06")
  })
  description = "Who ends clients' TLS. `files`: the gateway, by tls/clients.pem of its secrets, and the balancer sees bytes. `acm`: the balancer, by a certificate of ACM, which renews it; from there on it is TLS again, by tls/clients.pem, of which the balancer looks at nothing."
  default     = { kind = "files" }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "How long the balancer keeps a connection on which nothing moves. A model may think for minutes before its first token: keep it above `limits.first_token_deadline`. With `acm` AWS fixes it at 350."
  default     = 900
}

variable "disk_gib" {
  type        = number
  description = "Of each slot's disk: the last snapshot, usage, and audit records where there are any."
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
  description = "Of the balancer, whose addresses clients and name servers know."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
