variable "existing_network" {
  type = object({
    network = string
    subnet  = string
  })
  description = "An existing network and subnet, by their ids; null: both are made with `cidr`."
  default     = null
}

variable "cidr" {
  type        = string
  description = "The addresses of a new subnet, such as 10.22.0.0/20, without `existing_network`."
  default     = null
  validation {
    condition     = (var.cidr != null) != (var.existing_network != null)
    error_message = "Either a cidr, or an existing_network."
  }
}

variable "mesh_folder" {
  type        = string
  description = "A folder with the other roots' outputs: REGION.peers.json for each region, and controllers.json. null: the variables below give them."
  default     = null
}

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
}

variable "shared_secrets" {
  type        = list(string)
  description = "Secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "machine_image" {
  type        = string
  description = "The machine image by its own name, never by its family: projects/PROJECT/global/images/NAME. It needs what modules/machine/README.md lists; nothing here looks one up."
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
  description = "Networks of engines: gateways may connect only to these, to peers, to controllers and to Google."
}

variable "disk_gib" {
  type        = number
  description = "Size of each slot's disk, which holds the last snapshot, usage and, if enabled, audit records."
  default     = 20
}

variable "client_tls" {
  type = object({
    kind    = string
    domains = optional(list(string), [])
  })
  description = "Component that terminates clients' TLS. `files`: the gateway, by tls/clients.pem of its secrets, behind a balancer that passes packets on. `managed`: Google's global proxy, by a certificate for `domains` that Google renews; it connects to the gateway by TLS again."
  default     = { kind = "files" }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "With `managed`, how long the proxy keeps an idle connection. A model may think for minutes before its first token."
  default     = 900
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
