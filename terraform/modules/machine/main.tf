# Scripts that a machine runs at its first boot, as text: it makes nothing, and needs no provider.

locals {
  environment = merge(
    {
      ROLE      = var.role
      MAIN_FILE = var.role == "gateway" ? "region.yaml" : "controller.yaml"
      MANIFEST  = var.manifest
      OBJECTS   = join(" ", [for name, key in var.objects : "${name}=${key}"])
      SECRETS   = join(" ", var.secrets)
    },
    var.environment,
  )

  programs = merge(
    {
      "/usr/local/sbin/nightside-boot"     = file("${path.module}/files/boot")
      "/usr/local/sbin/nightside-material" = file("${path.module}/files/material")
    },
    var.has_farewell ? { "/usr/local/sbin/nightside-farewell" = file("${path.module}/files/farewell") } : {},
  )

  units = merge(
    {
      "/etc/systemd/system/nightside-boot.service"     = file("${path.module}/files/boot.service")
      "/etc/systemd/system/nightside-material.service" = file("${path.module}/files/material.service")
      "/etc/systemd/system/nightside-material.timer"   = templatefile("${path.module}/files/material.timer.tftpl", { refresh = var.refresh })

      "/etc/systemd/system/nightside-${var.role}.service.d/machine.conf" = templatefile("${path.module}/files/machine.conf.tftpl", { role = var.role })
    },
    var.has_farewell ? { "/etc/systemd/system/nightside-farewell.service" = file("${path.module}/files/farewell.service") } : {},
  )

  script = templatefile("${path.module}/files/first-boot.tftpl", {
    environment  = local.environment
    programs     = local.programs
    files        = merge(local.units, var.extra_files, { "/etc/logrotate.d/nightside" = file("${path.module}/files/logrotate") })
    cloud        = file("${path.module}/files/cloud-${var.cloud}")
    has_farewell = var.has_farewell
  })
}
