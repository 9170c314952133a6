variable "region" {
  type        = string
  description = "The mesh's name of the region, as in its policy file and certificates; usually Google's own name."
}

variable "jurisdiction" {
  type        = string
  description = "The region's jurisdiction, spelt as in the policy files."
}

variable "project" {
  type        = string
  description = "The project's id."
}

variable "gcp_region" {
  type        = string
  description = "Google's name of the region."
}

variable "network" {
  type        = string
  description = "The network's id, such as `network/gcp` makes."
}

variable "subnet" {
  type        = string
  description = "The subnet's id, in the region."
}

variable "slots" {
  type = map(object({
    zone        = string
    secrets     = list(string)
    health_host = optional(string)
    generation  = optional(number, 1)
  }))
  description = <<-END
    One for each gateway, by a short name appended to the region's: slot `a` of europe-west1 is gateway europe-west1a.
    `secrets` are secrets that this slot alone may read (projects/PROJECT/secrets/NAME; see the README).
    `health_host` is a name in its certificate for clients that resolves to its own address; without one the certificate has to contain the address itself.
    Raising `generation` replaces its machine: drain it before, and raise one slot's at a time (see the README).
  END
  validation {
    condition     = length(var.slots) > 0 && alltrue([for name, _ in var.slots : can(regex("^[a-z0-9]{1,8}$", name))])
    error_message = "At least one slot; names are up to eight small letters and digits."
  }
  validation {
    condition     = alltrue([for slot in values(var.slots) : length(slot.secrets) > 0 && alltrue([for each in slot.secrets : can(regex("^projects/[^/]+/secrets/[^/]+$", each))])])
    error_message = "Each slot has secrets of its own, named projects/PROJECT/secrets/NAME."
  }
  validation {
    condition     = max([for slot in values(var.slots) : slot.generation]...) - min([for slot in values(var.slots) : slot.generation]...) <= 1
    error_message = "Slots are replaced one at a time: generations differ by one at most."
  }
}

variable "shared_secrets" {
  type        = list(string)
  description = "Secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
  validation {
    condition     = alltrue([for each in var.shared_secrets : can(regex("^projects/[^/]+/secrets/[^/]+$", each))])
    error_message = "A secret's name is projects/PROJECT/secrets/NAME."
  }
}

variable "machine_image" {
  type        = string
  description = "The machine image by its own name, never by its family: projects/PROJECT/global/images/NAME. It needs what modules/machine/README.md lists; nothing here looks one up."
  validation {
    condition     = can(regex("^projects/[^/]+/global/images/[^/]+$", var.machine_image)) && !strcontains(var.machine_image, "/family/")
    error_message = "An image's name is projects/PROJECT/global/images/NAME."
  }
}

variable "machine_type" {
  type        = string
  description = "Machine type of the image's architecture. A gateway uses one core."
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
  description = "Networks of engines: gateways may connect only to these, to peers, to controllers and to Google."
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

variable "client_tls" {
  type = object({
    kind    = string
    domains = optional(list(string), [])
  })
  description = "Component that terminates clients' TLS. `files`: the gateway, by tls/clients.pem of its secrets, behind a balancer that passes packets on. `managed`: Google's global proxy, by a certificate for `domains` that Google renews; it connects to the gateway by TLS again."
  default     = { kind = "files" }
  validation {
    condition     = contains(["files", "managed"], var.client_tls.kind) && (var.client_tls.kind == "managed") == (length(var.client_tls.domains) > 0)
    error_message = "The kind is files, or managed with domains."
  }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "With `managed`, how long the proxy keeps an idle connection. A model may think for minutes before its first token."
  default     = 900
  validation {
    condition     = var.client_idle_timeout_s >= 60
    error_message = "The value is at least a minute, because models may think before their first token."
  }
}

variable "health_check_cidrs" {
  type        = list(string)
  description = "Source networks of Google's health checks and proxies, as its page on firewall rules for load balancing lists them."
  default     = ["35.191.0.0/16", "130.211.0.0/22", "209.85.152.0/22", "209.85.204.0/22"]
}

variable "kms_key" {
  type        = string
  description = "A key of the project's own for disks and the bucket (projects/…/cryptoKeys/…), which Google's service agents may use; null: Google's keys."
  default     = null
}

variable "collector" {
  type        = bool
  description = "Configure the Ops Agent of the machine image: logs, and metrics scraped on loopback."
  default     = true
}

variable "labels" {
  type        = map(string)
  description = "Labels of all resources that have labels."
  default     = {}
}
