// The core under both FFI handlers. Comments write "the kernel's terms" where a swapped kernel renames things.
#include "gemm_call.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tensor_map.h"

namespace jax_clc {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();  // CTAs along x
constexpr int64_t kMaxExtent = int64_t{1} << 62;

// Products of sizes and strides are taken in 128 bits: three factors below 2^32 and an element size fit.
using Wide = __int128;

Wide CeilDiv(Wide a, Wide b) { return (a + b - 1) / b; }

}  // namespace

ffi::TypeId GemmCall::id = {};

// --- Instantiate ----------------------------------------------------------------------------------------------------

ffi::ErrorOr<std::unique_ptr<GemmCall>> GemmCall::FromAttributes(const ffi::Dictionary& dictionary) {
  auto attributes = GemmAttributes::Read(dictionary);
  if (!attributes.has_value()) return ffi::Unexpected(attributes.error());
  std::unique_ptr<GemmCall> call(new GemmCall(*attributes));
  if (ffi::Error error = call->FindKernels(attributes->kernels); error.failure())
    return ffi::Unexpected(std::move(error));
  return call;
}

ffi::Error GemmCall::FindKernels(const std::vector<KernelRequest>& requests) {
  for (const KernelRequest& request : requests) {
    Choice choice = {request, FindKernel(request.name), nullptr};
    if (choice.kernel == nullptr) continue;  // of a family that this package lacks: the program was lowered elsewhere
    if (ffi::Error error = CheckChoice(choice); error.failure()) return error;
    if (!choice.kernel->spec.any_alignment) choice.any_alignment = StandIn(choice);
    choices_.push_back(std::move(choice));
  }
  if (!choices_.empty()) return ffi::Error::Success();
  std::string wanted;
  for (const KernelRequest& request : requests) wanted += (wanted.empty() ? "" : ", ") + request.name;
  return Fail("this installation has none of the kernels " + wanted + "; it has " +
              std::to_string(AllKernels().size()) +
              " kernels. Lower the program again with this version of jax_clc, or rebuild the kernels with "
              "`pip install .`");
}

ffi::Error GemmCall::CheckChoice(const Choice& choice) const {
  const KernelSpec& spec = choice.kernel->spec;
  for (Operand operand : {kA, kB, kD}) {
    const char major = choice.request.KernelAxis(layouts_[choice.request.CallOperand(operand)].major);
    if (spec.majors[operand] != major) {
      return Fail(std::string("operand ") + kOperandNames[operand] + " of the kernel" +
                      (choice.request.swapped ? " (swapped)" : "") + " must be " + spec.majors[operand] +
                      "-major, the call's is " + major + "-major",
                  choice.kernel.get());
    }
  }
  if (choice.request.split_k > 1 && !spec.split_k) {
    return Fail("split_k is " + std::to_string(choice.request.split_k) + ", the kernel cannot split",
                choice.kernel.get());
  }
  // The kernel multiplies the number of a part by the k tiles that the parts share.
  const Wide k_tiles = CeilDiv(sizes_.k, spec.tile_k);
  if (k_tiles * choice.request.split_k > kMaxSize) {
    return Fail("split_k is " + std::to_string(choice.request.split_k) + ": that many times " +
                    std::to_string(static_cast<int64_t>(k_tiles)) + " k tiles is beyond the limit of " +
                    std::to_string(kMaxSize) + " up to which kernels count in 32 bits",
                choice.kernel.get());
  }
  return ffi::Error::Success();
}

std::unique_ptr<GemmCall::Choice> GemmCall::StandIn(const Choice& choice) const {
  const KernelSpec& spec = choice.kernel->spec;
  for (const std::shared_ptr<Kernel>& kernel : AllKernels()) {
    const KernelSpec& other = kernel->spec;
    if (!other.any_alignment || other.family != spec.family || other.counter_bytes > 0) continue;
    if (sm_limit_ > 0 && !other.grid_of_workers) continue;
    for (bool swapped : {false, true}) {
      KernelRequest request = choice.request;
      request.name = other.name, request.swapped = swapped, request.split_k = 1;
      auto same_dtype = [&](Operand operand) {
        const Operand source = request.CallOperand(operand);
        return other.dtypes[operand] == spec.dtypes[choice.request.CallOperand(source)];
      };
      Choice stand_in = {request, kernel, nullptr};
      if (same_dtype(kA) && same_dtype(kB) && same_dtype(kD) && CheckChoice(stand_in).success()) {
        return std::make_unique<Choice>(std::move(stand_in));
      }
    }
  }
  return nullptr;
}

// --- Load -----------------------------------------------------------------------------------------------------------

ffi::Error GemmCall::ChoiceFor(const Driver& driver, CUcontext context, const Choice** choice) const {
  for (const Choice& candidate : choices_) {
    if (candidate.kernel->Find(driver, context) != nullptr) return *choice = &candidate, ffi::Error::Success();
  }
  CUdevice device = 0;
  int major = 0, minor = 0;
  CUresult result = driver.CtxGetDevice(&device);
  if (result == CUDA_SUCCESS) {
    result = driver.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  }
  if (result == CUDA_SUCCESS) {
    result = driver.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  }
  if (result != CUDA_SUCCESS) {
    return Fail("asking for the compute capability failed with " + driver.Describe(result), nullptr,
                ffi::ErrorCode::kInternal);
  }
  std::string offered;
  for (const Choice& candidate : choices_) {
    const KernelSpec& spec = candidate.kernel->spec;
    if (spec.Serves({major, minor})) return *choice = &candidate, ffi::Error::Success();
    offered += (offered.empty() ? "" : ", ") + spec.name + " (" + spec.family + ")";
  }
  return Fail("no kernel of this program runs on a device of compute capability " + std::to_string(major) + "." +
                  std::to_string(minor) + "; it names " + offered,
              nullptr, ffi::ErrorCode::kFailedPrecondition);
}

void GemmCall::Load(const Driver& driver, CUcontext context) const {
  if (sizes_.l == 0 || sizes_.m == 0 || sizes_.n == 0 || sizes_.k == 0) return;
  const Choice* choice = nullptr;
  if (ChoiceFor(driver, context, &choice).failure()) return;
  const LoadedKernel* loaded = nullptr;
  static_cast<void>(choice->kernel->Load(driver, context, &loaded));
  // The stand-in for unaligned buffers is loaded too: which kernel is needed is known only when it is too late to load.
  if (choice->any_alignment != nullptr) {
    static_cast<void>(choice->any_alignment->kernel->Load(driver, context, &loaded));
  }
}

// --- Execute --------------------------------------------------------------------------------------------------------

struct GemmCall::Launch {
  const Choice* choice;
  Sizes sizes;  // in the kernel's terms, as are the operands
  std::array<OperandView, 3> operands;
  Buffer scratch;
};

GemmCall::Launch GemmCall::InKernelTerms(const Choice& choice, const std::array<Buffer, 4>& buffers) const {
  Launch launch = {&choice, KernelSizes(choice), {}, buffers[kScratch]};
  for (Operand operand : {kA, kB, kD}) {
    const Operand source = choice.request.CallOperand(operand);
    const OperandLayout& layout = layouts_[source];
    launch.operands[operand] = {buffers[source].data,
                                buffers[source].bytes,
                                static_cast<int64_t>(ffi::ByteWidth(buffers[source].dtype)),
                                choice.request.KernelAxis(layout.major),
                                layout.outer_stride,
                                layout.batch_stride};
  }
  return launch;
}

ffi::Error GemmCall::Execute(const Device& device, const std::array<Buffer, 4>& buffers) const {
  const Driver& driver = *device.driver;
  const Buffer& d = buffers[kD];
  if (sizes_.l == 0 || sizes_.m == 0 || sizes_.n == 0) return ffi::Error::Success();
  if (sizes_.k == 0) {
    if (d.bytes == 0) return Fail("the result has no elements, the sizes say otherwise");
    const CUresult result = driver.MemsetD8Async(reinterpret_cast<CUdeviceptr>(d.data), 0, d.bytes, device.stream);
    if (result == CUDA_SUCCESS) return ffi::Error::Success();
    return Fail("cuMemsetD8Async failed with " + driver.Describe(result), nullptr, ffi::ErrorCode::kInternal);
  }

  const Choice* choice = nullptr;
  if (ffi::Error error = ChoiceFor(driver, device.context, &choice); error.failure()) return error;
  const Kernel* kernel = choice->kernel.get();
  if (ffi::Error error = CheckBuffers(kernel->spec, *choice, buffers); error.failure()) return error;

  Launch launch = InKernelTerms(*choice, buffers);
  for (const ParamSpec& param : kernel->spec.params) {
    if (!param.aligned) continue;
    const std::string obstacle = AlignmentObstacle(param.operand, launch.operands[param.operand], launch.sizes);
    if (obstacle.empty()) continue;
    if (choice->any_alignment == nullptr) {
      return Fail("operand " + std::string(kOperandNames[choice->request.CallOperand(param.operand)]) +
                      " cannot be moved 16 bytes at a time: " + obstacle +
                      "; and no kernel of these dtypes and majors ships that does otherwise",
                  kernel);
    }
    launch = InKernelTerms(*choice->any_alignment, buffers);
    break;
  }

  const LoadedKernel* loaded = launch.choice->kernel->Find(driver, device.context);
  if (loaded == nullptr) {  // the device was not open at Instantiate, or loading failed there
    ffi::Error error = launch.choice->kernel->Load(driver, device.context, &loaded);
    if (error.failure()) return error;
  }
  return Run(launch, device, *loaded);
}

ffi::Error GemmCall::CheckBuffers(const KernelSpec& spec, const Choice& choice,
                                  const std::array<Buffer, 4>& buffers) const {
  for (Operand operand : {kA, kB, kD}) {
    const std::string name = kOperandNames[operand];
    const Buffer& buffer = buffers[operand];
    const ffi::DataType expected = spec.dtypes[choice.request.CallOperand(operand)];
    if (buffer.dtype != expected) {
      return Fail("operand " + name + " is " + DtypeName(buffer.dtype) + ", the kernel takes " + DtypeName(expected),
                  choice.kernel.get());
    }
    const OperandLayout& layout = layouts_[operand];
    const char* axes = kOperandAxes[operand];
    const char outer = axes[0] == layout.major ? axes[1] : axes[0];
    const Wide reach = Wide(sizes_.l - 1) * layout.batch_stride + Wide(sizes_.Of(outer) - 1) * layout.outer_stride +
                       sizes_.Of(layout.major);
    const Wide bytes = reach * static_cast<int64_t>(ffi::ByteWidth(buffer.dtype));
    if (bytes > buffer.bytes || bytes > kMaxExtent) {
      return Fail("the strides of operand " + name + " (batch " + std::to_string(layout.batch_stride) + ", " + outer +
                      " " + std::to_string(layout.outer_stride) + " elements) reach beyond its " +
                      std::to_string(buffer.bytes) + " bytes",
                  choice.kernel.get());
    }
    if (buffer.data == nullptr) return Fail("operand " + name + " has no memory", choice.kernel.get());
  }
  if (const int64_t needed = ScratchBytes(spec, choice); buffers[kScratch].bytes < needed) {
    return Fail(
        "scratch has " + std::to_string(buffers[kScratch].bytes) + " bytes, the kernel needs " + std::to_string(needed),
        choice.kernel.get());
  }
  return ffi::Error::Success();
}

int64_t GemmCall::ScratchBytes(const KernelSpec& spec, const Choice& choice) const {
  if (choice.request.split_k <= 1) return spec.counter_bytes;
  const Sizes sizes = KernelSizes(choice);
  const Wide elements = CeilDiv(sizes.m, spec.tile_m) * spec.tile_m * CeilDiv(sizes.n, spec.tile_n) * spec.tile_n;
  const Wide bytes = spec.counter_bytes + elements * sizes.l * choice.request.split_k * spec.partial_bytes_per_element;
  return static_cast<int64_t>(std::min<Wide>(bytes, kMaxExtent));
}

namespace {

// The group of the raster, cut to the tiles that lie across its walk: a wider one is the same raster. Kernels multiply
// it by the length of the walk, which stays within the number of tiles then.
int64_t RasterGroup(const KernelSpec& spec, const Sizes& sizes, const KernelRequest& request) {
  const Wide across = request.raster_along == 0 ? CeilDiv(sizes.n, spec.tile_n) : CeilDiv(sizes.m, spec.tile_m);
  return static_cast<int64_t>(std::min<Wide>(request.raster_group, across));
}

int64_t IntegerOf(Value value, const KernelSpec& spec, const Sizes& sizes, const std::array<OperandView, 3>& operands,
                  const KernelRequest& request) {
  switch (value) {
    case Value::kM: return sizes.m;
    case Value::kN: return sizes.n;
    case Value::kK: return sizes.k;
    case Value::kL: return sizes.l;
    case Value::kRasterGroup: return RasterGroup(spec, sizes, request);
    case Value::kRasterAlong: return request.raster_along;
    case Value::kSplitK: return request.split_k;
    case Value::kAOuter: return operands[kA].outer_stride;
    case Value::kABatch: return operands[kA].batch_stride;
    case Value::kBOuter: return operands[kB].outer_stride;
    case Value::kBBatch: return operands[kB].batch_stride;
    case Value::kDOuter: return operands[kD].outer_stride;
    case Value::kDBatch: return operands[kD].batch_stride;
  }
  return 0;
}

}  // namespace

ffi::Error GemmCall::FillParameters(const Launch& launch, const Driver& driver, std::byte* block) const {
  const Choice& choice = *launch.choice;
  const KernelSpec& spec = choice.kernel->spec;
  for (const ParamSpec& param : spec.params) {
    std::byte* place = block + param.offset;
    if (param.kind == ParamSpec::kTensorMap) {
      CUtensorMap map;
      std::string error;
      if (!EncodeTensorMap(driver, param.tensor_map, launch.operands[param.operand], launch.sizes, &map, &error)) {
        return Fail("tensor map of operand " + std::string(kOperandNames[choice.request.CallOperand(param.operand)]) +
                        ": " + error,
                    choice.kernel.get());
      }
      std::memcpy(place, &map, sizeof map);
    } else if (param.kind == ParamSpec::kPointer) {
      void* data = param.operand == kScratch ? launch.scratch.data : launch.operands[param.operand].data;
      std::memcpy(place, &data, sizeof data);
    } else {
      for (Value value : param.values) {
        const int64_t integer = IntegerOf(value, spec, launch.sizes, launch.operands, choice.request);
        const auto narrow = static_cast<int32_t>(integer);  // its range was checked at Instantiate
        const bool is_narrow = param.kind == ParamSpec::kInt32;
        std::memcpy(place, is_narrow ? static_cast<const void*>(&narrow) : &integer, is_narrow ? 4 : 8);
        place += is_narrow ? 4 : 8;
      }
    }
  }
  return ffi::Error::Success();
}

ffi::ErrorOr<int64_t> GemmCall::Clusters(const Launch& launch, const LoadedKernel& loaded) const {
  const Kernel* kernel = launch.choice->kernel.get();
  const KernelSpec& spec = kernel->spec;
  const Wide tiles = CeilDiv(launch.sizes.m, spec.tile_m) * CeilDiv(launch.sizes.n, spec.tile_n) * launch.sizes.l *
                     launch.choice->request.split_k;
  const int64_t limit = sm_limit_ == 0 ? kMaxGrid : sm_limit_ / spec.cluster_size;  // an SM for each CTA
  const std::string limited = "sm_limit is " + std::to_string(sm_limit_) + ", ";
  if (limit < 1) {
    return ffi::Unexpected(Fail(limited + "one cluster takes " + std::to_string(spec.cluster_size) + " SMs", kernel));
  }
  if (!spec.grid_of_workers && sm_limit_ > 0 && tiles > limit) {
    return ffi::Unexpected(Fail(limited + "and this schedule always fills the device", kernel));
  }
  const Wide clusters = spec.grid_of_workers ? std::min({tiles, Wide(loaded.max_active_clusters), Wide(limit)}) : tiles;
  if (tiles > kMaxSize || clusters * spec.cluster_size > kMaxGrid) {
    return ffi::Unexpected(Fail("more tiles than a grid can have", kernel));
  }
  return static_cast<int64_t>(clusters);
}

ffi::Error GemmCall::Run(const Launch& launch, const Device& device, const LoadedKernel& loaded) const {
  const Driver& driver = *device.driver;
  const Kernel* kernel = launch.choice->kernel.get();
  const KernelSpec& spec = kernel->spec;
  auto failed = [&](const std::string& call, CUresult result) {
    return Fail(call + " failed with " + driver.Describe(result), kernel, ffi::ErrorCode::kInternal);
  };

  alignas(64) std::byte block[kMaxParamBytes] = {};
  if (ffi::Error error = FillParameters(launch, driver, block); error.failure()) return error;
  const auto clusters = Clusters(launch, loaded);
  if (!clusters.has_value()) return clusters.error();

  if (spec.zeroed_bytes > 0) {
    const auto counters = reinterpret_cast<CUdeviceptr>(launch.scratch.data);
    if (CUresult result = driver.MemsetD8Async(counters, 0, spec.zeroed_bytes, device.stream); result != CUDA_SUCCESS) {
      return failed("cuMemsetD8Async", result);
    }
  }
  const ClusterLaunch grid(spec, *clusters, device.stream);
  // The assembler may place the whole list behind a gap (48 bytes were seen, so that tensor maps come to lie at
  // multiples of 64 in constant memory): so a GPU is given a pointer to each parameter. The emulator takes them packed.
  size_t param_bytes = spec.param_bytes;
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &param_bytes,
                    CU_LAUNCH_PARAM_END};
  std::vector<void*> each;
  for (const ParamSpec& param : spec.params) each.push_back(block + param.offset);
  const CUresult result = driver.loads_by_name
                              ? driver.LaunchKernelEx(&grid.config, loaded.function, nullptr, packed)
                              : driver.LaunchKernelEx(&grid.config, loaded.function, each.data(), nullptr);
  if (result == CUDA_SUCCESS) return ffi::Error::Success();
  return failed("cuLaunchKernelEx of " + std::to_string(grid.config.gridDimX) + " CTAs in clusters of " +
                    std::to_string(spec.cluster_size),
                result);
}

// --- A call in words and in a kernel's terms -----------------------------------------------------------------------

Sizes GemmCall::KernelSizes(const Choice& choice) const {
  return choice.request.swapped ? Sizes{sizes_.l, sizes_.n, sizes_.m, sizes_.k} : sizes_;
}

std::string GemmCall::Describe() const {
  auto text = [](int64_t value) { return std::to_string(value); };
  return "A[" + text(sizes_.l) + "," + text(sizes_.m) + "," + text(sizes_.k) + "] (" + layouts_[kA].major +
         "-major) times B[" + text(sizes_.l) + "," + text(sizes_.k) + "," + text(sizes_.n) + "] (" +
         layouts_[kB].major + "-major)";
}

ffi::Error GemmCall::Fail(const std::string& what, const Kernel* kernel, ffi::ErrorCode code) const {
  return ffi::Error(
      code, "jax_clc.gemm: " + Describe() + (kernel ? ", kernel " + kernel->spec.name : std::string()) + ": " + what);
}

}  // namespace jax_clc
