// Where the clouds' regions are, roughly, for those whose files do not say so: latitude and longitude of the city or the
// state that their providers name.

const KNOWN = {
  // Amazon Web Services
  "us-east-1": [38.9, -77.5], "us-east-2": [40.0, -83.0], "us-west-1": [37.4, -121.9], "us-west-2": [45.8, -119.7],
  "ca-central-1": [45.5, -73.6], "ca-west-1": [51.0, -114.1], "mx-central-1": [20.6, -100.4], "sa-east-1": [-23.5, -46.6],
  "eu-west-1": [53.3, -6.3], "eu-west-2": [51.5, -0.1], "eu-west-3": [48.9, 2.4], "eu-central-1": [50.1, 8.7],
  "eu-central-2": [47.4, 8.5], "eu-north-1": [59.3, 18.1], "eu-south-1": [45.5, 9.2], "eu-south-2": [41.6, -0.9],
  "il-central-1": [32.1, 34.8], "me-south-1": [26.1, 50.5], "me-central-1": [24.5, 54.4], "af-south-1": [-33.9, 18.4],
  "ap-south-1": [19.1, 72.9], "ap-south-2": [17.4, 78.5], "ap-southeast-1": [1.35, 103.8], "ap-southeast-2": [-33.9, 151.2],
  "ap-southeast-3": [-6.2, 106.8], "ap-southeast-4": [-37.8, 145.0], "ap-southeast-5": [3.1, 101.7], "ap-southeast-7": [13.8, 100.5],
  "ap-northeast-1": [35.7, 139.7], "ap-northeast-2": [37.6, 127.0], "ap-northeast-3": [34.7, 135.5], "ap-east-1": [22.3, 114.2],
  // Google Cloud
  "us-central1": [41.3, -95.9], "us-east1": [33.2, -80.0], "us-east4": [39.0, -77.5], "us-east5": [40.0, -83.0],
  "us-south1": [32.8, -96.8], "us-west1": [45.6, -121.2], "us-west2": [34.1, -118.2], "us-west3": [40.8, -111.9],
  "us-west4": [36.2, -115.1], "northamerica-northeast1": [45.5, -73.6], "northamerica-northeast2": [43.7, -79.4],
  "southamerica-east1": [-23.5, -46.6], "southamerica-west1": [-33.4, -70.7], "europe-west1": [50.4, 3.8],
  "europe-west2": [51.5, -0.1], "europe-west3": [50.1, 8.7], "europe-west4": [53.4, 6.8], "europe-west6": [47.4, 8.5],
  "europe-west8": [45.5, 9.2], "europe-west9": [48.9, 2.4], "europe-west10": [52.5, 13.4], "europe-west12": [45.1, 7.7],
  "europe-north1": [60.6, 27.2], "europe-central2": [52.2, 21.0], "europe-southwest1": [40.4, -3.7], "me-west1": [32.1, 34.8],
  "me-central1": [25.3, 51.5], "me-central2": [26.4, 50.1], "africa-south1": [-26.2, 28.0], "asia-south1": [19.1, 72.9],
  "asia-south2": [28.6, 77.2], "asia-southeast1": [1.35, 103.8], "asia-southeast2": [-6.2, 106.8], "asia-east1": [24.1, 120.5],
  "asia-east2": [22.3, 114.2], "asia-northeast1": [35.7, 139.7], "asia-northeast2": [34.7, 135.5], "asia-northeast3": [37.6, 127.0],
  "australia-southeast1": [-33.9, 151.2], "australia-southeast2": [-37.8, 145.0],
  // Microsoft Azure
  eastus: [37.4, -79.8], eastus2: [36.7, -78.4], centralus: [41.6, -93.6], northcentralus: [41.9, -87.6],
  southcentralus: [29.4, -98.5], westus: [37.8, -122.4], westus2: [47.2, -119.9], westus3: [33.4, -112.1],
  canadacentral: [43.7, -79.4], canadaeast: [46.8, -71.2], brazilsouth: [-23.5, -46.6], northeurope: [53.3, -6.3],
  westeurope: [52.4, 4.9], uksouth: [51.5, -0.1], ukwest: [51.5, -3.2], francecentral: [48.9, 2.4],
  germanywestcentral: [50.1, 8.7], switzerlandnorth: [47.4, 8.5], swedencentral: [60.7, 17.1], norwayeast: [59.9, 10.7],
  polandcentral: [52.2, 21.0], italynorth: [45.5, 9.2], spaincentral: [40.4, -3.7], israelcentral: [32.1, 34.8],
  uaenorth: [25.3, 55.3], qatarcentral: [25.3, 51.5], southafricanorth: [-26.2, 28.0], centralindia: [18.5, 73.9],
  southindia: [13.1, 80.3], westindia: [19.1, 72.9], southeastasia: [1.35, 103.8], eastasia: [22.3, 114.2],
  japaneast: [35.7, 139.7], japanwest: [34.7, 135.5], koreacentral: [37.6, 127.0], australiaeast: [-33.9, 151.2],
  australiasoutheast: [-37.8, 145.0], indonesiacentral: [-6.2, 106.8], malaysiawest: [3.1, 101.7], newzealandnorth: [-36.8, 174.8],
};

const BY_NAME = new Map(Object.entries(KNOWN));

// [latitude, longitude], or null where it is unknown.
export function placeOf(region) {
  if (typeof region.latitude === "number" && typeof region.longitude === "number") return [region.latitude, region.longitude];
  return BY_NAME.get(region.region) ?? null;
}
