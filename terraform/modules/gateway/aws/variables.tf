variable "region" {
  type        = string
  description = "The mesh's name of the region, as in its policy file and certificates; usually AWS's own name."
}

variable "jurisdiction" {
  type        = string
  description = "The region's jurisdiction, spelt as in the policy files."
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
    One for each gateway, by a short name appended to the region's: slot `a` of us-east-1 is gateway us-east-1a.
    `secrets` are ARNs of secrets that this slot alone may read (certificates and keys; see the README).
    `health_host` is a name in its certificate for clients that resolves to its own address; without one the certificate has to contain the address itself.
    Raising `generation` replaces its machine: raise one slot's at a time.
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
  description = "The key that encrypts the secrets, if the account has its own; null: AWS's."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image. It needs what modules/machine/README.md lists; nothing here looks one up: the choice of image is yours."
  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.machine_image))
    error_message = "An image's id is ami- and a number."
  }
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
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "A SHA-256 is 64 hexadecimal digits."
  }
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
  validation {
    condition     = alltrue([for peer in values(var.peers) : can(regex("^[0-9.]+:[0-9]+$", peer.address))])
    error_message = "A peer's address is IPv4:PORT: the firewall needs it."
  }
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
  validation {
    condition     = alltrue([for each in var.controllers : can(regex("^[0-9.]+:[0-9]+$", each))])
    error_message = "A controller's address is IPv4:PORT: the firewall needs it."
  }
}

variable "latitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
  validation {
    condition     = var.latitude >= -90 && var.latitude <= 90
    error_message = "A latitude is from -90 to 90."
  }
}

variable "longitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
  validation {
    condition     = var.longitude >= -180 && var.longitude <= 180
    error_message = "A longitude is from -180 to 180."
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
  validation {
    condition     = contains(["files", "acm"], var.client_tls.kind) && (var.client_tls.kind == "acm") == (var.client_tls.certificate_arn != null)
    error_message = "The kind is files, or acm with a certificate_arn."
  }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "How long the balancer keeps an idle connection. A model may think for minutes before its first token: keep it above `limits.first_token_deadline`. With `acm` AWS fixes it at 350."
  default     = 900
  validation {
    condition     = var.client_idle_timeout_s >= 60 && var.client_idle_timeout_s <= 6000
    error_message = "AWS accepts 60 to 6000."
  }
}

variable "disk_gib" {
  type        = number
  description = "Size of each slot's disk, which holds the last snapshot, usage and, if enabled, audit records."
  default     = 20
  validation {
    condition     = var.disk_gib >= 1 && floor(var.disk_gib) == var.disk_gib
    error_message = "The size is a whole number of GiB."
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
  description = "Deletion protection of the balancer, whose addresses clients and name servers know."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
