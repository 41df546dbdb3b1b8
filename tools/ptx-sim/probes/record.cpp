// Runs every probe on the GPU and writes what came out. Driver API only, found at run time, so the
// program links anywhere; the PTX that the repository holds is compiled in and given to the
// driver's own assembler; or, from --code DIR, what ptxas made of it: DIR/TOPIC.cubin.
//
//   record --out DIR [--topic NAME]... [--repeat N] [--code DIR]   record
//   record --dry-run [--out DIR] [--ptx DIR]          check the cases without a GPU
//   record --list                                     print the cases
//   record --clusters [--code DIR]                    print how many clusters of each size the GPU has room for, as JSON
#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "record.h"

#define EMBED(topic)                                                            \
    asm(".section .rodata\n.balign 16\nptx_" #topic ":\n.incbin \"ptx/" #topic  \
        ".ptx\"\n.byte 0\nptx_" #topic "_end:\n.previous\n");                   \
    extern "C" const char ptx_##topic[] __attribute__((visibility("hidden")));
EMBED(cvt)
EMBED(arith)
EMBED(integer)
EMBED(warp)
EMBED(async)
EMBED(tma)
EMBED(matrix)
EMBED(wgmma)
EMBED(sums_f16)
EMBED(mma_fp4)
EMBED(tcgen05)
EMBED(tcgen05_pdl)

namespace {
const char* embedded(const std::string& topic) {
    if (topic == "cvt") return ptx_cvt;
    if (topic == "arith") return ptx_arith;
    if (topic == "integer") return ptx_integer;
    if (topic == "warp") return ptx_warp;
    if (topic == "async") return ptx_async;
    if (topic == "tma") return ptx_tma;
    if (topic == "matrix") return ptx_matrix;
    if (topic == "wgmma") return ptx_wgmma;
    if (topic == "sums_f16") return ptx_sums_f16;
    if (topic == "mma_fp4") return ptx_mma_fp4;
    if (topic == "tcgen05") return ptx_tcgen05;
    if (topic == "tcgen05_pdl") return ptx_tcgen05_pdl;
    return "";
}

// ---- The driver ----
struct Driver {
    CUresult (*Init)(unsigned) = 0;
    CUresult (*DriverGetVersion)(int*) = 0;
    CUresult (*DeviceGet)(CUdevice*, int) = 0;
    CUresult (*DeviceGetName)(char*, int, CUdevice) = 0;
    CUresult (*DeviceGetAttribute)(int*, CUdevice_attribute, CUdevice) = 0;
    CUresult (*CtxCreate)(CUcontext*, unsigned, CUdevice) = 0;
    CUresult (*ModuleLoadDataEx)(CUmodule*, const void*, unsigned, CUjit_option*, void**) = 0;
    CUresult (*ModuleGetFunction)(CUfunction*, CUmodule, const char*) = 0;
    CUresult (*MemAlloc)(CUdeviceptr*, size_t) = 0;
    CUresult (*MemFree)(CUdeviceptr) = 0;
    CUresult (*MemcpyHtoD)(CUdeviceptr, const void*, size_t) = 0;
    CUresult (*MemcpyDtoH)(void*, CUdeviceptr, size_t) = 0;
    CUresult (*LaunchKernelEx)(const CUlaunchConfig*, CUfunction, void**, void**) = 0;
    CUresult (*StreamQuery)(CUstream) = 0;
    CUresult (*FuncSetAttribute)(CUfunction, CUfunction_attribute, int) = 0;
    CUresult (*OccupancyMaxActiveClusters)(int*, CUfunction, const CUlaunchConfig*) = 0;
    CUresult (*GetErrorName)(CUresult, const char**) = 0;
    CUresult (*TensorMapEncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                     const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) = 0;

    bool open() {
        void* lib = dlopen("libcuda.so.1", RTLD_NOW);
        if (!lib) {
            fprintf(stderr, "no CUDA driver: %s\n", dlerror());
            return false;
        }
        bool ok = true;
        auto get = [&](auto& f, const char* name) {
            f = reinterpret_cast<typename std::remove_reference<decltype(f)>::type>(dlsym(lib, name));
            if (!f) {
                fprintf(stderr, "the driver has no %s\n", name);
                ok = false;
            }
        };
        get(Init, "cuInit");
        get(DriverGetVersion, "cuDriverGetVersion");
        get(DeviceGet, "cuDeviceGet");
        get(DeviceGetName, "cuDeviceGetName");
        get(DeviceGetAttribute, "cuDeviceGetAttribute");
        get(CtxCreate, "cuCtxCreate_v2");
        get(ModuleLoadDataEx, "cuModuleLoadDataEx");
        get(ModuleGetFunction, "cuModuleGetFunction");
        get(MemAlloc, "cuMemAlloc_v2");
        get(MemFree, "cuMemFree_v2");
        get(MemcpyHtoD, "cuMemcpyHtoD_v2");
        get(MemcpyDtoH, "cuMemcpyDtoH_v2");
        get(LaunchKernelEx, "cuLaunchKernelEx");
        get(StreamQuery, "cuStreamQuery");
        get(FuncSetAttribute, "cuFuncSetAttribute");
        get(OccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters");
        get(GetErrorName, "cuGetErrorName");
        get(TensorMapEncodeTiled, "cuTensorMapEncodeTiled");
        return ok;
    }
    std::string name(CUresult r) {
        const char* s = 0;
        GetErrorName(r, &s);
        return s ? s : std::to_string((int)r);
    }
} cu;

std::string kernel_driver() {
    if (void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
        auto init = (int (*)())dlsym(lib, "nvmlInit_v2");
        auto version = (int (*)(char*, unsigned))dlsym(lib, "nvmlSystemGetDriverVersion");
        char buf[96] = {0};
        if (init && version && init() == 0 && version(buf, sizeof buf) == 0) return buf;
    }
    return "unknown";
}

// ---- JSON and safetensors ----
std::string quote(const std::string& s) {
    std::string o = "\"";
    for (unsigned char c : s) {
        if (c == '"' || c == '\\') {
            o += '\\';
            o += (char)c;
        } else if (c < 0x20) {
            char b[8];
            snprintf(b, sizeof b, "\\u%04x", c);
            o += b;
        } else {
            o += (char)c;
        }
    }
    return o + "\"";
}
template <class T>
std::string list(const T* v, unsigned n) {
    std::string o = "[";
    for (unsigned i = 0; i < n; i++) o += (i ? "," : "") + std::to_string(v[i]);
    return o + "]";
}
const char* TYPE_NAMES[] = {"UINT8",    "UINT16",      "UINT32",        "INT32",      "UINT64",   "INT64",
                            "FLOAT16",  "FLOAT32",     "FLOAT64",       "BFLOAT16",   "FLOAT32_FTZ",
                            "TFLOAT32", "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};

std::string case_json(const Case& c, const std::string& topic) {
    std::string o = "{\"name\":" + quote(c.name) + ",\"ptx\":" + quote(topic + ".ptx") +
                    ",\"entry\":" + quote(c.entry);
    if (!c.first.empty()) o += ",\"first\":" + quote(c.first);
    if (!c.encode_only) {
        o += ",\"grid\":" + list(c.grid, 3) + ",\"block\":" + list(c.block, 3);
        if (c.cluster[0]) o += ",\"cluster\":" + list(c.cluster, 3);
        o += ",\"smem\":" + std::to_string(c.smem);
    }
    o += ",\"buffers\":[";
    for (size_t i = 0; i < c.buffers.size(); i++) {
        const Buffer& b = c.buffers[i];
        o += (i ? "," : "") + std::string("{\"name\":") + quote(b.name) + ",\"bytes\":" + std::to_string(b.bytes);
        if (b.init.empty())
            o += ",\"fill\":" + std::to_string(b.fill);
        else
            o += ",\"init\":" + quote(b.init);
        if (b.out) o += ",\"out\":" + quote(c.name + "/" + b.name);
        o += "}";
    }
    o += "],\"params\":[";
    for (size_t i = 0; i < c.params.size(); i++) {
        const Param& p = c.params[i];
        if (i) o += ",";
        if (p.kind == Param::BUFFER) {
            o += "{\"buffer\":" + std::to_string(p.buffer) + "}";
        } else if (p.kind == Param::U32) {
            o += "{\"u32\":" + std::to_string(p.value) + "}";
        } else {
            const Map& m = p.map;
            unsigned r = std::min(m.rank, 5u);
            o += "{\"tensormap\":{\"buffer\":" + std::to_string(m.buffer) +
                 ",\"offset\":" + std::to_string(m.offset) + ",\"type\":" + std::to_string(m.type) +
                 ",\"type_name\":" + quote(m.type < 16 ? TYPE_NAMES[m.type] : "none") +
                 ",\"rank\":" + std::to_string(m.rank) + ",\"dims\":" + list(m.dims, r) +
                 ",\"strides\":" + list(m.strides, r ? r - 1 : 0) + ",\"box\":" + list(m.box, r) +
                 ",\"elem_strides\":" + list(m.elem_strides, r) +
                 ",\"interleave\":" + std::to_string(m.interleave) +
                 ",\"swizzle\":" + std::to_string(m.swizzle) + ",\"l2_promotion\":" + std::to_string(m.l2) +
                 ",\"oob_fill\":" + std::to_string(m.oob) + "}}";
        }
    }
    o += "],\"tags\":[";
    for (size_t i = 0; i < c.tags.size(); i++) o += (i ? "," : "") + quote(c.tags[i]);
    o += "]";
    if (c.encode_only) o += ",\"encode_only\":true";
    if (c.encode_result >= 0) o += ",\"encode_result\":" + std::to_string(c.encode_result);
    if (!c.encode_only) o += std::string(",\"repeatable\":") + (c.repeatable ? "true" : "false");
    return o + ",\"status\":" + quote(c.status) + "}";
}

uint64_t fnv1a(const char* s) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    return h;
}

// Largest elements first, so that every tensor is aligned to its element.
size_t write_file(const std::string& path, const Topic& t, std::map<std::string, std::string> meta) {
    std::string cases = "[";
    for (size_t i = 0; i < t.cases.size(); i++) cases += (i ? ",\n" : "") + case_json(t.cases[i], t.name);
    meta["cases"] = cases + "]";
    std::string head = "{\"__metadata__\":{";
    bool first = true;
    for (auto& kv : meta) {
        head += (first ? "" : ",") + quote(kv.first) + ":" + quote(kv.second);
        first = false;
    }
    head += "}";
    std::vector<const Bytes*> order;
    size_t at = 0;
    for (unsigned elem : {8u, 4u, 2u, 1u})
        for (auto& kv : t.tensors) {
            if (kv.second.elem != elem) continue;
            size_t n = kv.second.data.size();
            const char* dtype = elem == 8 ? "U64" : elem == 4 ? "U32" : elem == 2 ? "U16" : "U8";
            head += "," + quote(kv.first) + ":{\"dtype\":\"" + dtype + "\",\"shape\":[" +
                    std::to_string(n / elem) + "],\"data_offsets\":[" + std::to_string(at) + "," +
                    std::to_string(at + n) + "]}";
            at += n;
            order.push_back(&kv.second.data);
        }
    head += "}";
    while (head.size() % 8) head += ' ';
    std::ofstream f(path, std::ios::binary);
    uint64_t len = head.size();
    f.write((const char*)&len, 8);
    f.write(head.data(), (std::streamsize)len);
    for (const Bytes* b : order) f.write((const char*)b->data(), (std::streamsize)b->size());
    f.close();
    if (!f) throw std::runtime_error("cannot write " + path);
    return 8 + len + at;
}

// ---- Recording ----
struct Failure {
    std::string what;
    bool lost;  // the process may not touch the GPU again
};
void need(CUresult r, const char* what, bool lost = true) {
    if (r != CUDA_SUCCESS) throw Failure{std::string(what) + ": " + cu.name(r), lost};
}
bool hung = false;  // a kernel still runs: nothing that waits for it may be called

struct Gpu {
    CUdevice device = 0;
    CUcontext ctx = 0;
    CUmodule module = 0;

    void open(const std::string& code) {
        need(cu.CtxCreate(&ctx, 0, device), "cuCtxCreate");
        static char log[16384];
        log[0] = 0;
        CUjit_option opts[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void* vals[] = {log, (void*)(uintptr_t)sizeof log};
        CUresult r = cu.ModuleLoadDataEx(&module, code.c_str(), 2, opts, vals);
        if (r != CUDA_SUCCESS) throw Failure{"load: " + cu.name(r) + " " + log, true};
    }

    // Puts a kernel of the case on the stream; `follows`: it may start before the one in front of it has ended.
    void launch(const Case& c, const std::string& entry, void** args, bool follows) {
        if (entry.empty()) return;
        CUfunction f;
        need(cu.ModuleGetFunction(&f, module, entry.c_str()), "cuModuleGetFunction");
        CUlaunchAttribute attrs[2];
        memset(attrs, 0, sizeof attrs);
        unsigned count = 0;
        if (c.cluster[0]) {
            CUlaunchAttribute& attr = attrs[count++];
            attr.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attr.value.clusterDim.x = c.cluster[0];
            attr.value.clusterDim.y = c.cluster[1];
            attr.value.clusterDim.z = c.cluster[2];
        }
        if (follows) {
            CUlaunchAttribute& attr = attrs[count++];
            attr.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attr.value.programmaticStreamSerializationAllowed = 1;
        }
        CUlaunchConfig cfg;
        memset(&cfg, 0, sizeof cfg);
        cfg.gridDimX = c.grid[0], cfg.gridDimY = c.grid[1], cfg.gridDimZ = c.grid[2];
        cfg.blockDimX = c.block[0], cfg.blockDimY = c.block[1], cfg.blockDimZ = c.block[2];
        cfg.sharedMemBytes = c.smem;
        cfg.attrs = attrs;
        cfg.numAttrs = count;
        need(cu.LaunchKernelEx(&cfg, f, args, 0), "launch");
    }

    // One launch with fresh buffers: the bytes of each output buffer.
    std::vector<Bytes> once(Topic& t, Case& c) {
        std::vector<CUdeviceptr> ptr(c.buffers.size(), 0);
        std::vector<Bytes> outs(c.buffers.size());
        struct Free {
            std::vector<CUdeviceptr>& p;
            ~Free() {
                for (CUdeviceptr x : p)
                    if (x && !hung) cu.MemFree(x);
            }
        } guard{ptr};
        for (size_t i = 0; i < c.buffers.size(); i++) {
            const Buffer& b = c.buffers[i];
            need(cu.MemAlloc(&ptr[i], b.bytes), "cuMemAlloc");
            Bytes data;
            if (b.init.empty()) {
                data.assign(b.bytes, b.fill);
            } else {
                const Bytes& src = t.tensors.at(b.init).data;
                data.assign(src.begin(), src.begin() + (ptrdiff_t)b.bytes);
            }
            need(cu.MemcpyHtoD(ptr[i], data.data(), b.bytes), "copy to the device");
        }
        std::vector<CUtensorMap> maps(c.params.size());
        std::vector<void*> args(c.params.size());
        for (size_t i = 0; i < c.params.size(); i++) {
            Param& p = c.params[i];
            if (p.kind == Param::BUFFER) {
                args[i] = &ptr[p.buffer];
            } else if (p.kind == Param::U32) {
                args[i] = &p.value;
            } else {
                const Map& m = p.map;
                CUresult r = cu.TensorMapEncodeTiled(
                    &maps[i], (CUtensorMapDataType)m.type, m.rank, (void*)(uintptr_t)(ptr[m.buffer] + m.offset),
                    (const cuuint64_t*)m.dims, (const cuuint64_t*)m.strides, m.box, m.elem_strides,
                    (CUtensorMapInterleave)m.interleave, (CUtensorMapSwizzle)m.swizzle,
                    (CUtensorMapL2promotion)m.l2, (CUtensorMapFloatOOBfill)m.oob);
                c.encode_result = (int)r;
                if (c.encode_only) return outs;
                need(r, "cuTensorMapEncodeTiled", false);
                args[i] = &maps[i];
            }
        }
        if (c.encode_only) return outs;
        launch(c, c.first, args.data(), false);
        launch(c, c.entry, args.data(), !c.first.empty());
        CUresult r;
        for (int ms = 0;; ms++) {
            r = cu.StreamQuery(0);
            if (r != CUDA_ERROR_NOT_READY) break;
            if (ms > 10000) {
                hung = true;
                throw Failure{"still running after 10 s", true};
            }
            usleep(ms < 100 ? 50 : 1000);
        }
        need(r, "kernel");
        for (size_t i = 0; i < c.buffers.size(); i++) {
            if (!c.buffers[i].out) continue;
            outs[i].resize(c.buffers[i].bytes);
            need(cu.MemcpyDtoH(outs[i].data(), ptr[i], outs[i].size()), "copy back");
        }
        return outs;
    }
};

// How many clusters fit at once, by size and by the shared memory of a CTA, as the driver says: JSON to stdout.
int print_clusters(const std::string& code) {
    if (!cu.open()) return 1;
    try {
        need(cu.Init(0), "cuInit");
        Gpu gpu;
        need(cu.DeviceGet(&gpu.device, 0), "cuDeviceGet");
        char name[128] = "unknown";
        int sms = 0, most_shared = 0;
        cu.DeviceGetName(name, sizeof name, gpu.device);
        cu.DeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.device);
        cu.DeviceGetAttribute(&most_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, gpu.device);
        gpu.open(code);
        CUfunction f;
        need(cu.ModuleGetFunction(&f, gpu.module, "cluster_sregs"), "cuModuleGetFunction");
        need(cu.FuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), "cuFuncSetAttribute");
        need(cu.FuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most_shared),
             "cuFuncSetAttribute");
        std::string o = "{\"gpu\":" + quote(name) + ",\"multiprocessors\":" + std::to_string(sms) + ",\"clusters\":[";
        bool first = true;
        for (int shared : {0, 48 << 10, most_shared / 2, most_shared})
            for (unsigned size : {1u, 2u, 4u, 8u, 16u}) {
                CUlaunchAttribute attr;
                memset(&attr, 0, sizeof attr);
                attr.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                attr.value.clusterDim.x = size, attr.value.clusterDim.y = attr.value.clusterDim.z = 1;
                CUlaunchConfig cfg;
                memset(&cfg, 0, sizeof cfg);
                cfg.gridDimX = size * 1024, cfg.gridDimY = cfg.gridDimZ = 1;
                cfg.blockDimX = 128, cfg.blockDimY = cfg.blockDimZ = 1;
                cfg.sharedMemBytes = (unsigned)shared;
                cfg.attrs = &attr;
                cfg.numAttrs = 1;
                int most = 0;
                const CUresult r = cu.OccupancyMaxActiveClusters(&most, f, &cfg);
                o += std::string(first ? "" : ",") + "{\"size\":" + std::to_string(size) +
                     ",\"shared_bytes\":" + std::to_string(shared);
                o += r == CUDA_SUCCESS ? ",\"most\":" + std::to_string(most) : ",\"error\":" + quote(cu.name(r));
                o += "}";
                first = false;
            }
        printf("%s]}\n", o.c_str());
    } catch (Failure& e) {
        fprintf(stderr, "record: %s\n", e.what.c_str());
        return 1;
    }
    return 0;
}

// An error of a kernel is sticky: the process that met it can never use the GPU again, not even
// through a new context. So the process that hands out the cases makes no CUDA call. A child runs
// them in order and sends each result through a pipe; once it is lost, a fresh child goes on.
//
// Messages: 'M' key value (metadata), 'F' what (the GPU cannot be used), 'C' index status
// encode_result repeatable count, then count times name elem data (a case is done).
struct Pipe {
    int fd;
    void raw(const void* p, size_t n) {
        for (const char* c = (const char*)p; n;) {
            ssize_t k = write(fd, c, n);
            if (k <= 0) _exit(3);
            c += k, n -= (size_t)k;
        }
    }
    void num(int64_t v) { raw(&v, sizeof v); }
    void str(const std::string& s) {
        num((int64_t)s.size());
        raw(s.data(), s.size());
    }
};
struct Reader {
    int fd;
    int timeout_ms;  // without a byte
    struct End {
        bool late;
    };
    void raw(void* p, size_t n) {
        for (char* c = (char*)p; n;) {
            struct pollfd f = {fd, POLLIN, 0};
            if (poll(&f, 1, timeout_ms) <= 0) throw End{true};
            ssize_t k = read(fd, c, n);
            if (k <= 0) throw End{false};
            c += k, n -= (size_t)k;
        }
    }
    int64_t num() {
        int64_t v;
        raw(&v, sizeof v);
        return v;
    }
    std::string str() {
        std::string s((size_t)num(), 0);
        raw(&s[0], s.size());
        return s;
    }
};

// The child: cases from `at` on, until the end or until the process is lost.
void run_cases(Topic& t, size_t at, const std::string& code, int repeat, Pipe to) {
    if (!cu.open()) return;
    CUresult r = cu.Init(0);
    if (r != CUDA_SUCCESS) {
        fprintf(stderr, "cuInit: %d\n", (int)r);
        return;
    }
    Gpu gpu;
    char name[128] = "unknown";
    int version = 0, major = 0, minor = 0;
    try {
        need(cu.DeviceGet(&gpu.device, 0), "cuDeviceGet");
        cu.DeviceGetName(name, sizeof name, gpu.device);
        cu.DriverGetVersion(&version);
        cu.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu.device);
        cu.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu.device);
        auto meta = [&](const char* key, const std::string& value) {
            to.raw("M", 1);
            to.str(key);
            to.str(value);
        };
        meta("gpu", name);
        meta("compute_capability", std::to_string(major) + "." + std::to_string(minor));
        meta("driver", kernel_driver());
        meta("cuda_driver_api", std::to_string(version));
        if (t.needs && major != t.needs)
            throw Failure{"has no such instruction: needs compute capability " + std::to_string(t.needs) + ".x", true};
        gpu.open(code);
    } catch (Failure& f) {
        to.raw("F", 1);
        to.str(f.what);
        return;
    }
    for (bool lost = false; at < t.cases.size() && !lost; at++) {
        Case& c = t.cases[at];
        std::vector<Bytes> first;
        try {
            first = gpu.once(t, c);
            c.repeatable = true;
            for (int k = 1; k < repeat && !c.encode_only; k++)
                if (gpu.once(t, c) != first) c.repeatable = false;
            c.status = "ok";
        } catch (Failure& f) {
            c.status = "error: " + f.what;
            c.repeatable = false;
            first.clear();
            lost = f.lost;
        }
        to.raw("C", 1);
        to.num((int64_t)at);
        to.str(c.status);
        to.num(c.encode_result);
        to.num(c.repeatable);
        std::vector<size_t> outs;
        for (size_t i = 0; i < first.size(); i++)
            if (c.buffers[i].out) outs.push_back(i);
        to.num((int64_t)outs.size());
        for (size_t i : outs) {
            to.str(c.name + "/" + c.buffers[i].name);
            to.num(first[i].size() % c.buffers[i].elem ? 1 : c.buffers[i].elem);
            to.str(std::string(first[i].begin(), first[i].end()));
        }
    }
}

// Records a topic; returns whether a file was written.
bool record_topic(Topic& t, const std::string& ptx, const std::string& code, const std::string& out, int repeat) {
    const int CASE_SECONDS = 40, TOPIC_SECONDS = 300, PROCESSES = 100, OPENINGS = 3;
    std::map<std::string, std::string> meta;
    time_t start = time(0);
    size_t at = 0;
    int failed_openings = 0;
    for (int processes = 0; at < t.cases.size(); processes++) {
        std::string stop;
        if (processes == PROCESSES) stop = "too many failures before";
        if (time(0) - start > TOPIC_SECONDS) stop = "out of time";
        int fd[2];
        if (stop.empty() && pipe(fd)) stop = "no pipe";
        fflush(stdout);
        fflush(stderr);
        pid_t pid = stop.empty() ? fork() : -1;
        if (pid == 0) {
            close(fd[0]);
            try {
                run_cases(t, at, code.empty() ? ptx : code, repeat, Pipe{fd[1]});
            } catch (std::exception& e) {
                fprintf(stderr, "%s: %s\n", t.name.c_str(), e.what());
                _exit(4);
            }
            _exit(0);
        }
        bool opened = false, late = false;
        std::string failure;
        if (pid > 0) {
            close(fd[1]);
            Reader from{fd[0], CASE_SECONDS * 1000};
            try {
                for (;;) {
                    char kind = 0;
                    from.raw(&kind, 1);
                    if (kind == 'M') {
                        std::string key = from.str();
                        meta[key] = from.str();
                        opened = true;
                    } else if (kind == 'F') {
                        failure = from.str();
                    } else {
                        at = (size_t)from.num();
                        Case& c = t.cases.at(at);
                        std::string status = from.str();
                        int64_t encode_result = from.num(), repeatable = from.num();
                        std::map<std::string, Tensor> tensors;
                        for (int64_t n = from.num(); n > 0; n--) {
                            std::string name = from.str();
                            Tensor& x = tensors[name];
                            x.elem = (unsigned)from.num();
                            std::string data = from.str();
                            x.data.assign(data.begin(), data.end());
                        }
                        c.status = status;
                        c.encode_result = (int)encode_result;
                        c.repeatable = repeatable != 0;
                        t.tensors.insert(tensors.begin(), tensors.end());
                        if (c.status != "ok")
                            printf("%s/%s: %s\n", t.name.c_str(), c.name.c_str(), c.status.c_str());
                        else if (!c.encode_only && !c.repeatable)
                            printf("%s/%s: not repeatable\n", t.name.c_str(), c.name.c_str());
                        at++;
                        failed_openings = 0;
                        if (time(0) - start > TOPIC_SECONDS) throw Reader::End{true};
                    }
                }
            } catch (Reader::End& e) {
                late = e.late;
            }
            close(fd[0]);
            int status = 0;
            // It has closed the pipe, or it hangs; teardown gets a while.
            bool done = false;
            for (int k = 0; k < 100 && !done && !late; k++) {
                done = waitpid(pid, &status, WNOHANG) == pid;
                if (!done) usleep(100000);
            }
            if (!done) {
                kill(pid, SIGKILL);
                waitpid(pid, &status, 0);
            }
            if (at == t.cases.size() || time(0) - start > TOPIC_SECONDS) continue;
            if (!opened || !failure.empty()) {
                // A GPU may need a moment after a fault.
                if (++failed_openings < OPENINGS) {
                    sleep(1);
                    continue;
                }
                if (!opened && meta.empty()) return false;
                stop = failure.empty() ? "the driver did not start" : failure;
                fprintf(stderr, "%s: %s\n", t.name.c_str(), stop.c_str());
            } else if (late || !WIFEXITED(status) || WEXITSTATUS(status)) {
                Case& c = t.cases[at++];
                c.status = late ? "error: no answer after " + std::to_string(CASE_SECONDS) + " s"
                                : "error: the recorder's process died";
                printf("%s/%s: %s\n", t.name.c_str(), c.name.c_str(), c.status.c_str());
            }
        } else if (stop.empty()) {
            stop = "no process";
        }
        if (!stop.empty()) {
            printf("%s: from %s on: %s\n", t.name.c_str(), t.cases[at].name.c_str(), stop.c_str());
            for (; at < t.cases.size(); at++) t.cases[at].status = "error: " + stop;
        }
    }
    int bad = 0;
    for (const Case& c : t.cases) bad += c.status != "ok";
    if (meta.empty()) return false;
    // The probes' own verdicts: a poll that ran out where nothing said it should.
    for (const Case& c : t.cases) {
        auto it = t.tensors.find(c.name + "/flags");
        bool counted = std::find(c.tags.begin(), c.tags.end(), "quiescent") != c.tags.end();
        bool incomplete = std::find(c.tags.begin(), c.tags.end(), "incomplete") != c.tags.end();
        if (it == t.tensors.end() || it->second.data.size() < 4) continue;
        uint32_t flag;
        memcpy(&flag, it->second.data.data(), 4);
        if (counted)
            printf("%s/%s: %s\n", t.name.c_str(), c.name.c_str(), flag ? "counted" : "not what was counted");
        else if (incomplete == (flag != 0))
            printf("%s/%s: barrier %s\n", t.name.c_str(), c.name.c_str(), flag ? "completed" : "did not complete");
    }
    char date[32], hash[32];
    time_t now = time(0);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)fnv1a(ptx.c_str()));
    meta["format"] = "ptx-sim-probes/1";
    meta["topic"] = t.name;
    meta["date"] = date;
    meta["ptx_fnv1a64"] = hash;
    meta["assembled_by"] = code.empty() ? "driver" : "ptxas";
    size_t n = write_file(out + "/" + t.name + ".safetensors", t, meta);
    printf("%s: %zu cases, %d failed, %zu bytes, %s, driver %s\n", t.name.c_str(), t.cases.size(), bad, n,
           meta["gpu"].c_str(), meta["driver"].c_str());
    fflush(stdout);
    return true;
}

// ---- Checks without a GPU ----
// Each entry's parameters, as bytes: from the text of the PTX.
std::map<std::string, std::vector<unsigned>> entries(const std::string& ptx) {
    std::map<std::string, std::vector<unsigned>> m;
    size_t at = 0;
    const std::string key = ".visible .entry ";
    while ((at = ptx.find(key, at)) != std::string::npos) {
        at += key.size();
        size_t paren = ptx.find('(', at), end = ptx.find("\n)", paren);
        std::string name = ptx.substr(at, paren - at), body = ptx.substr(paren, end - paren);
        std::vector<unsigned>& sizes = m[name];
        size_t p = 0;
        while ((p = body.find(".param ", p)) != std::string::npos) {
            p += 7;
            if (body.compare(p, 4, ".u64") == 0)
                sizes.push_back(8);
            else if (body.compare(p, 4, ".u32") == 0)
                sizes.push_back(4);
            else if (body.compare(p, 9, ".align 64") == 0)
                sizes.push_back(128);
            else
                sizes.push_back(0);
        }
    }
    return m;
}

int check(Topic& t, const std::string& ptx) {
    int bad = 0;
    auto e = entries(ptx);
    std::map<std::string, int> used;
    for (const Case& c : t.cases) {
        for (const Buffer& b : c.buffers)
            if (!b.init.empty() && t.bytes(b.init) < b.bytes) {
                printf("%s/%s: %s is longer than %s\n", t.name.c_str(), c.name.c_str(), b.name.c_str(),
                       b.init.c_str());
                bad++;
            }
        if (c.encode_only) continue;
        auto it = e.find(c.entry);
        std::vector<unsigned> want;
        for (const Param& p : c.params) want.push_back(p.kind == Param::BUFFER ? 8 : p.kind == Param::U32 ? 4 : 128);
        if (it == e.end() || it->second != want) {
            printf("%s/%s: %s\n", t.name.c_str(), c.name.c_str(),
                   it == e.end() ? "no such entry" : "parameters do not fit the entry");
            bad++;
        }
        if (c.smem > 48 * 1024) printf("%s/%s: too much shared memory\n", t.name.c_str(), c.name.c_str()), bad++;
        used[c.entry]++;
        if (!c.first.empty()) used[c.first]++;
    }
    for (auto& kv : e)
        if (!used.count(kv.first)) {
            printf("%s: entry %s is never launched\n", t.name.c_str(), kv.first.c_str());
            bad++;
        }
    return bad;
}
}  // namespace

int main(int argc, char** argv) {
    std::string out, ptx_dir, code_dir;
    std::vector<std::string> only;
    bool dry = false, listing = false, clusters = false;
    int repeat = 3;
    for (int i = 1; i < argc; i++) {
        std::string a = argv[i];
        auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
        if (a == "--out") out = next();
        else if (a == "--ptx") ptx_dir = next();
        else if (a == "--code") code_dir = next();
        else if (a == "--topic") only.push_back(next());
        else if (a == "--repeat") repeat = atoi(next().c_str());
        else if (a == "--dry-run") dry = true;
        else if (a == "--list") listing = true;
        else if (a == "--clusters") clusters = true;
        else {
            fprintf(stderr, "usage: record --out DIR [--topic NAME]... [--repeat N] [--code DIR] | --dry-run [--out DIR] [--ptx DIR] | --list | --clusters [--code DIR]\n");
            return 2;
        }
    }
    if (clusters) {
        std::stringstream code;
        if (!code_dir.empty()) {
            std::ifstream f(code_dir + "/async.cubin", std::ios::binary);
            code << f.rdbuf();
        }
        return print_clusters(code_dir.empty() ? embedded("async") : code.str());
    }
    if (!dry && !listing && out.empty()) {
        fprintf(stderr, "record: --out DIR is missing\n");
        return 2;
    }
    if (!out.empty()) mkdir(out.c_str(), 0777);
    std::vector<Topic> topics;
    try {
        topics = all_topics();
    } catch (std::exception& e) {
        fprintf(stderr, "record: %s\n", e.what());
        return 2;
    }
    int bad = 0;
    size_t total = 0, count = 0;
    for (Topic& t : topics) {
        if (!only.empty() && std::find(only.begin(), only.end(), t.name) == only.end()) continue;
        for (Case& c : t.cases)
            if (c.cluster[0])
                for (int k = 1; k < 3; k++) c.cluster[k] = std::max(c.cluster[k], 1u);
        // Dynamic shared memory is aligned to 1024 bytes behind a static barrier: leave room.
        if (t.name == "async" || t.name == "tma")
            for (Case& c : t.cases)
                if (c.smem) c.smem += 1024;
        std::string ptx = embedded(t.name);
        if (!ptx_dir.empty()) {
            std::ifstream f(ptx_dir + "/" + t.name + ".ptx", std::ios::binary);
            std::stringstream s;
            s << f.rdbuf();
            ptx = s.str();
        }
        count += t.cases.size();
        if (listing) {
            for (const Case& c : t.cases) printf("%s/%s %s\n", t.name.c_str(), c.name.c_str(), c.entry.c_str());
            continue;
        }
        if (dry) {
            bad += check(t, ptx);
            // Outputs as they start, so that the size is the recording's.
            for (const Case& c : t.cases)
                for (const Buffer& b : c.buffers)
                    if (b.out) {
                        Tensor x;
                        x.elem = b.bytes % b.elem ? 1 : b.elem;
                        x.data.assign(b.bytes, b.fill);
                        t.tensors[c.name + "/" + b.name] = x;
                    }
            std::string path = out.empty() ? "/dev/null" : out + "/" + t.name + ".safetensors";
            size_t n = write_file(path, t, {{"format", "ptx-sim-probes/1"}, {"topic", t.name}, {"dry_run", "true"}});
            printf("%s: %zu cases, %zu tensors, %zu bytes\n", t.name.c_str(), t.cases.size(), t.tensors.size(), n);
            total += n;
            continue;
        }
        bool written = false;
        try {
            std::stringstream code;
            if (!code_dir.empty()) {
                std::ifstream f(code_dir + "/" + t.name + ".cubin", std::ios::binary);
                if (!f) throw std::runtime_error("no " + code_dir + "/" + t.name + ".cubin");
                code << f.rdbuf();
            }
            written = record_topic(t, ptx, code.str(), out, repeat);
        } catch (std::exception& e) {
            fprintf(stderr, "%s: %s\n", t.name.c_str(), e.what());
        }
        // Some cases may have failed: the file says which.
        if (!written) {
            printf("%s: no recording\n", t.name.c_str());
            bad++;
        }
    }
    printf("%zu cases", count);
    if (dry) printf(", %zu bytes in all", total);
    printf(", %d problems\n", bad);
    return bad ? 1 : 0;
}
