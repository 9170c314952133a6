variable "region" {
  type        = string
  description = "The mesh's name of the region, as its policy file and its certificates have it; AWS's own name, as a rule."
}

variable "jurisdiction" {
  type        = string
  description = "Whose law holds there, spelt as in the policy files."
}

variable "vpc_id" {
  type        = string
  description = "The network, such as `network/aws` makes."
}

variable "slots" {
  type = map(object({
    zone             = string
    subnet_id        = string
    private_ip       = optional(string)
    secrets          = list(string)
    health_host      = optional(string)
    generation       = optional(number, 1)
    existing_disk_id = optional(string)
  }))
  description = <<-END
    One for each gateway, by a short name that is put behind the region's: slot `a` of us-east-1 is gateway us-east-1a.
    `secrets` are ARNs of secrets that this slot alone may read (certificates and keys; see the README).
    `health_host` is a name that its certificate for clients holds and that leads to its own address; without one its address is used, which the certificate has to hold then.
    Raising `generation` has its machine replaced: raise one slot's at a time.
    `existing_disk_id` is a volume in the zone to use in place of a new one, such as one made from a snapshot.
  END
  validation {
    condition     = length(var.slots) > 0 && alltrue([for name, _ in var.slots : can(regex("^[a-z0-9]{1,8}$", name))])
    error_message = "At least one slot; names are up to eight small letters and digits."
  }
  validation {
    condition     = alltrue([for slot in values(var.slots) : length(slot.secrets) > 0 && alltrue([for arn in slot.secrets : can(regex("^arn:[^:]+:secretsmanager:", arn))])])
    error_message = "Each slot has secrets of its own, each an ARN of Secrets Manager."
  }
  validation {
    condition     = max([for slot in values(var.slots) : slot.generation]...) - min([for slot in values(var.slots) : slot.generation]...) <= 1
    error_message = "Slots are replaced one at a time: generations differ by one at most."
  }
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
  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.machine_image))
    error_message = "An image is called ami- and its number."
  }
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
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "A SHA-256 is 64 hexadecimal digits."
  }
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
  validation {
    condition     = alltrue([for peer in values(var.peers) : can(regex("^[0-9.]+:[0-9]+$", peer.address))])
    error_message = "A peer's address is IPv4:PORT: the firewall lets it in by that."
  }
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
  validation {
    condition     = alltrue([for each in var.controllers : can(regex("^[0-9.]+:[0-9]+$", each))])
    error_message = "A controller's address is IPv4:PORT: the firewall lets it in by that."
  }
}

variable "latitude" {
  type        = number
  description = "Where the region is, in degrees."
  validation {
    condition     = var.latitude >= -90 && var.latitude <= 90
    error_message = "From -90 to 90."
  }
}

variable "longitude" {
  type        = number
  description = "Where the region is, in degrees."
  validation {
    condition     = var.longitude >= -180 && var.longitude <= 180
    error_message = "From -180 to 180."
  }
}

variable "client_cidrs" {
  type        = list(string)
  description = "Networks of clients."
  default     = ["0.0.0.0/0"]
  validation {
    condition     = alltrue([for each in var.client_cidrs : can(cidrhost(each, 0))])
    error_message = "Networks such as 203.0.113.0/24."
  }
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
  validation {
    condition     = contains(["files", "acm"], var.client_tls.kind) && (var.client_tls.kind == "acm") == (var.client_tls.certificate_arn != null)
    error_message = "The kind is files, or acm with a certificate_arn."
  }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "How long the balancer keeps a connection on which nothing moves. A model may think for minutes before its first token: keep it above `limits.first_token_deadline`. With `acm` AWS fixes it at 350."
  default     = 900
  validation {
    condition     = var.client_idle_timeout_s >= 60 && var.client_idle_timeout_s <= 6000
    error_message = "AWS takes 60 to 6000."
  }
}

variable "disk_gib" {
  type        = number
  description = "Of each slot's disk: the last snapshot, usage, and audit records where there are any."
  default     = 20
  validation {
    condition     = var.disk_gib >= 1 && floor(var.disk_gib) == var.disk_gib
    error_message = "Whole GiB."
  }
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
