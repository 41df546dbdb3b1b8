//! All other functions that CUDA 13.0 exports: each says that it is not supported.

use crate::call::missing;

missing! { Runtime;
        __cudaGetProcAddress cudaArrayGetInfo cudaArrayGetMemoryRequirements cudaArrayGetPlane
        cudaArrayGetSparseProperties cudaCreateChannelDesc cudaCreateSurfaceObject cudaCreateTextureObject
        cudaDestroyExternalMemory cudaDestroyExternalSemaphore cudaDestroySurfaceObject cudaDestroyTextureObject
        cudaDeviceDisablePeerAccess cudaDeviceEnablePeerAccess cudaDeviceFlushGPUDirectRDMAWrites
        cudaDeviceGetByPCIBusId cudaDeviceGetCacheConfig cudaDeviceGetGraphMemAttribute
        cudaDeviceGetHostAtomicCapabilities cudaDeviceGetLimit cudaDeviceGetNvSciSyncAttributes
        cudaDeviceGetP2PAtomicCapabilities cudaDeviceGetP2PAttribute cudaDeviceGetSharedMemConfig
        cudaDeviceGetTexture1DLinearMaxWidth cudaDeviceGraphMemTrim cudaDeviceRegisterAsyncNotification
        cudaDeviceSetGraphMemAttribute cudaDeviceSetMemPool cudaDeviceUnregisterAsyncNotification
        cudaEGLStreamConsumerAcquireFrame cudaEGLStreamConsumerConnect cudaEGLStreamConsumerConnectWithFlags
        cudaEGLStreamConsumerDisconnect cudaEGLStreamConsumerReleaseFrame cudaEGLStreamProducerConnect
        cudaEGLStreamProducerDisconnect cudaEGLStreamProducerPresentFrame cudaEGLStreamProducerReturnFrame
        cudaEventCreateFromEGLSync cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray
        cudaFreeArray cudaFreeMipmappedArray cudaFuncGetName cudaFuncGetParamInfo cudaGLGetDevices
        cudaGLMapBufferObject cudaGLMapBufferObjectAsync cudaGLRegisterBufferObject cudaGLSetBufferObjectMapFlags
        cudaGLSetGLDevice cudaGLUnmapBufferObject cudaGLUnmapBufferObjectAsync cudaGLUnregisterBufferObject
        cudaGetChannelDesc cudaGetExportTable cudaGetMipmappedArrayLevel cudaGetSurfaceObjectResourceDesc
        cudaGetTextureObjectResourceDesc cudaGetTextureObjectResourceViewDesc cudaGetTextureObjectTextureDesc
        cudaGraphAddChildGraphNode cudaGraphAddDependencies cudaGraphAddEmptyNode cudaGraphAddEventRecordNode
        cudaGraphAddEventWaitNode cudaGraphAddExternalSemaphoresSignalNode cudaGraphAddExternalSemaphoresWaitNode
        cudaGraphAddHostNode cudaGraphAddKernelNode cudaGraphAddMemAllocNode cudaGraphAddMemFreeNode
        cudaGraphAddMemcpyNode cudaGraphAddMemcpyNode1D cudaGraphAddMemcpyNodeFromSymbol
        cudaGraphAddMemcpyNodeToSymbol cudaGraphAddMemsetNode cudaGraphAddNode cudaGraphChildGraphNodeGetGraph
        cudaGraphClone cudaGraphConditionalHandleCreate cudaGraphCreate cudaGraphDebugDotPrint cudaGraphDestroy
        cudaGraphDestroyNode cudaGraphEventRecordNodeGetEvent cudaGraphEventRecordNodeSetEvent
        cudaGraphEventWaitNodeGetEvent cudaGraphEventWaitNodeSetEvent cudaGraphExecChildGraphNodeSetParams
        cudaGraphExecDestroy cudaGraphExecEventRecordNodeSetEvent cudaGraphExecEventWaitNodeSetEvent
        cudaGraphExecExternalSemaphoresSignalNodeSetParams cudaGraphExecExternalSemaphoresWaitNodeSetParams
        cudaGraphExecGetFlags cudaGraphExecHostNodeSetParams cudaGraphExecKernelNodeSetParams
        cudaGraphExecMemcpyNodeSetParams cudaGraphExecMemcpyNodeSetParams1D cudaGraphExecMemcpyNodeSetParamsFromSymbol
        cudaGraphExecMemcpyNodeSetParamsToSymbol cudaGraphExecMemsetNodeSetParams cudaGraphExecNodeSetParams
        cudaGraphExecUpdate cudaGraphExternalSemaphoresSignalNodeGetParams
        cudaGraphExternalSemaphoresSignalNodeSetParams cudaGraphExternalSemaphoresWaitNodeGetParams
        cudaGraphExternalSemaphoresWaitNodeSetParams cudaGraphGetEdges cudaGraphGetNodes cudaGraphGetRootNodes
        cudaGraphHostNodeGetParams cudaGraphHostNodeSetParams cudaGraphInstantiate cudaGraphInstantiateWithFlags
        cudaGraphInstantiateWithParams cudaGraphInstantiateWithParams_ptsz cudaGraphKernelNodeCopyAttributes
        cudaGraphKernelNodeGetAttribute cudaGraphKernelNodeGetParams cudaGraphKernelNodeSetAttribute
        cudaGraphKernelNodeSetParams cudaGraphLaunch cudaGraphLaunch_ptsz cudaGraphMemAllocNodeGetParams
        cudaGraphMemFreeNodeGetParams cudaGraphMemcpyNodeGetParams cudaGraphMemcpyNodeSetParams
        cudaGraphMemcpyNodeSetParams1D cudaGraphMemcpyNodeSetParamsFromSymbol cudaGraphMemcpyNodeSetParamsToSymbol
        cudaGraphMemsetNodeGetParams cudaGraphMemsetNodeSetParams cudaGraphNodeFindInClone
        cudaGraphNodeGetDependencies cudaGraphNodeGetDependentNodes cudaGraphNodeGetEnabled cudaGraphNodeGetType
        cudaGraphNodeSetEnabled cudaGraphNodeSetParams cudaGraphReleaseUserObject cudaGraphRemoveDependencies
        cudaGraphRetainUserObject cudaGraphUpload cudaGraphUpload_ptsz cudaGraphicsEGLRegisterImage
        cudaGraphicsGLRegisterBuffer cudaGraphicsGLRegisterImage cudaGraphicsMapResources
        cudaGraphicsResourceGetMappedEglFrame cudaGraphicsResourceGetMappedMipmappedArray
        cudaGraphicsResourceGetMappedPointer cudaGraphicsResourceSetMapFlags cudaGraphicsSubResourceGetMappedArray
        cudaGraphicsUnmapResources cudaGraphicsUnregisterResource cudaGraphicsVDPAURegisterOutputSurface
        cudaGraphicsVDPAURegisterVideoSurface cudaImportExternalMemory cudaImportExternalSemaphore
        cudaIpcCloseMemHandle cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle cudaIpcOpenMemHandle
        cudaLibraryEnumerateKernels cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
        cudaLibraryLoadFromFile cudaLogsCurrent cudaLogsDumpToFile cudaLogsDumpToMemory cudaLogsRegisterCallback
        cudaLogsUnregisterCallback cudaMalloc3D cudaMalloc3DArray cudaMallocArray cudaMallocMipmappedArray
        cudaMemDiscardAndPrefetchBatchAsync cudaMemDiscardAndPrefetchBatchAsync_ptsz cudaMemDiscardBatchAsync
        cudaMemDiscardBatchAsync_ptsz cudaMemGetDefaultMemPool cudaMemGetMemPool cudaMemPoolCreate cudaMemPoolDestroy
        cudaMemPoolExportPointer cudaMemPoolExportToShareableHandle cudaMemPoolGetAccess cudaMemPoolGetAttribute
        cudaMemPoolImportFromShareableHandle cudaMemPoolImportPointer cudaMemPoolSetAccess cudaMemPrefetchBatchAsync
        cudaMemPrefetchBatchAsync_ptsz cudaMemRangeGetAttribute cudaMemRangeGetAttributes cudaMemSetMemPool
        cudaMemcpy2DArrayToArray cudaMemcpy2DArrayToArray_ptds cudaMemcpy2DFromArray cudaMemcpy2DFromArrayAsync
        cudaMemcpy2DFromArrayAsync_ptsz cudaMemcpy2DFromArray_ptds cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync
        cudaMemcpy2DToArrayAsync_ptsz cudaMemcpy2DToArray_ptds cudaMemcpy3D cudaMemcpy3DAsync cudaMemcpy3DAsync_ptsz
        cudaMemcpy3DBatchAsync cudaMemcpy3DBatchAsync_ptsz cudaMemcpy3DPeer cudaMemcpy3DPeerAsync
        cudaMemcpy3DPeerAsync_ptsz cudaMemcpy3DPeer_ptds cudaMemcpy3D_ptds cudaMemcpyArrayToArray
        cudaMemcpyArrayToArray_ptds cudaMemcpyBatchAsync cudaMemcpyBatchAsync_ptsz cudaMemcpyFromArray
        cudaMemcpyFromArrayAsync cudaMemcpyFromArrayAsync_ptsz cudaMemcpyFromArray_ptds cudaMemcpyToArray
        cudaMemcpyToArrayAsync cudaMemcpyToArrayAsync_ptsz cudaMemcpyToArray_ptds cudaMemset3D cudaMemset3DAsync
        cudaMemset3DAsync_ptsz cudaMemset3D_ptds cudaMipmappedArrayGetMemoryRequirements
        cudaMipmappedArrayGetSparseProperties cudaOccupancyAvailableDynamicSMemPerBlock cudaSetValidDevices
        cudaSignalExternalSemaphoresAsync cudaSignalExternalSemaphoresAsync_ptsz cudaStreamAddCallback
        cudaStreamAddCallback_ptsz cudaStreamBeginCapture cudaStreamBeginCaptureToGraph
        cudaStreamBeginCaptureToGraph_ptsz cudaStreamBeginCapture_ptsz cudaStreamCopyAttributes
        cudaStreamCopyAttributes_ptsz cudaStreamEndCapture cudaStreamEndCapture_ptsz cudaStreamGetAttribute
        cudaStreamGetAttribute_ptsz cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_ptsz cudaStreamGetId
        cudaStreamGetId_ptsz cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_ptsz
        cudaThreadExchangeStreamCaptureMode cudaUserObjectCreate cudaUserObjectRelease cudaUserObjectRetain
        cudaVDPAUGetDevice cudaVDPAUSetVDPAUDevice cudaWaitExternalSemaphoresAsync
        cudaWaitExternalSemaphoresAsync_ptsz
}

missing! { Driver;
        cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
        cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties cuCheckpointProcessCheckpoint
        cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState cuCheckpointProcessLock
        cuCheckpointProcessRestore cuCheckpointProcessUnlock cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
        cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxDetach cuCtxDisablePeerAccess
        cuCtxEnablePeerAccess cuCtxFromGreenCtx cuCtxGetCacheConfig cuCtxGetDevResource
        cuCtxGetExecAffinity cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxRecordEvent cuCtxSetFlags
        cuCtxSetSharedMemConfig cuCtxWaitEvent cuDestroyExternalMemory cuDestroyExternalSemaphore
        cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceGetByPCIBusId cuDeviceGetDevResource
        cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid
        cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute cuDeviceGetProperties
        cuDeviceGetTexture1DLinearMaxWidth cuDeviceGraphMemTrim cuDeviceRegisterAsyncNotification
        cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceUnregisterAsyncNotification
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites
        cuFuncGetModule cuFuncGetName cuFuncIsLoaded cuFuncSetBlockShape cuFuncSetSharedSize cuGraphAddBatchMemOpNode
        cuGraphAddChildGraphNode cuGraphAddDependencies_v2 cuGraphAddEmptyNode cuGraphAddEventRecordNode
        cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode
        cuGraphAddHostNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode
        cuGraphAddMemsetNode cuGraphAddNode_v2 cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
        cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint
        cuGraphDestroy cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
        cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams
        cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecEventRecordNodeSetEvent
        cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecHostNodeSetParams
        cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecNodeSetParams cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges_v2 cuGraphGetNodes cuGraphGetRootNodes
        cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiateWithFlags cuGraphInstantiateWithParams
        cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams_v2
        cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphMemAllocNodeGetParams
        cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
        cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetDependencies_v2
        cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetType cuGraphNodeSetEnabled
        cuGraphNodeSetParams cuGraphReleaseUserObject cuGraphRemoveDependencies_v2 cuGraphRetainUserObject
        cuGraphUpload cuGraphicsMapResources cuGraphicsResourceGetMappedMipmappedArray
        cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray
        cuGraphicsUnmapResources cuGraphicsUnregisterResource cuGreenCtxCreate cuGreenCtxDestroy
        cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate cuGreenCtxWaitEvent
        cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle
        cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuKernelGetLibrary cuKernelGetName cuKernelSetCacheConfig cuLaunch
        cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuLaunchGridAsync cuLibraryEnumerateKernels
        cuLibraryGetKernelCount cuLibraryGetManaged cuLibraryGetUnifiedFunction cuLibraryLoadFromFile cuLinkAddData_v2
        cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuLogsCurrent cuLogsDumpToFile
        cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAddressFree cuMemAddressReserve
        cuMemAdvise_v2 cuMemAllocFromPoolAsync cuMemBatchDecompressAsync cuMemCreate cuMemDiscardAndPrefetchBatchAsync
        cuMemDiscardBatchAsync cuMemExportToShareableHandle cuMemGetAccess cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool cuMemGetHandleForAddressRange cuMemGetMemPool
        cuMemHostGetFlags cuMemHostRegister_v2 cuMemHostUnregister cuMemImportFromShareableHandle cuMemMap
        cuMemMapArrayAsync cuMemPoolCreate cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle
        cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolImportFromShareableHandle cuMemPoolImportPointer
        cuMemPoolSetAccess cuMemPoolTrimTo cuMemPrefetchAsync_v2 cuMemPrefetchBatchAsync cuMemRangeGetAttribute
        cuMemRangeGetAttributes cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess cuMemSetMemPool cuMemUnmap
        cuMemcpy3DAsync_v2 cuMemcpy3DBatchAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAtoA_v2
        cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2
        cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD2D16Async cuMemsetD2D16_v2
        cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 cuMipmappedArrayCreate
        cuMipmappedArrayDestroy cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
        cuMipmappedArrayGetSparseProperties cuModuleEnumerateFunctions cuModuleGetFunctionCount cuModuleGetSurfRef
        cuModuleGetTexRef cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindMem cuMulticastCreate
        cuMulticastGetGranularity cuMulticastUnbind cuOccupancyAvailableDynamicSMemPerBlock
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxPotentialBlockSize
        cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize cuParamSetSize cuParamSetTexRef
        cuParamSetf cuParamSeti cuParamSetv cuPointerGetAttributes cuPointerSetAttribute
        cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamAttachMemAsync cuStreamBatchMemOp_v2
        cuStreamBeginCaptureToGraph cuStreamBeginCapture_v2 cuStreamCopyAttributes cuStreamEndCapture
        cuStreamGetAttribute cuStreamGetCaptureInfo_v3 cuStreamGetDevice cuStreamGetFlags
        cuStreamGetGreenCtx cuStreamGetId cuStreamGetPriority cuStreamSetAttribute
        cuStreamUpdateCaptureDependencies_v2 cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2
        cuStreamWriteValue64_v2 cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray
        cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
        cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode
        cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags
        cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
        cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode
        cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags
        cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode cuUserObjectCreate
        cuUserObjectRelease cuUserObjectRetain cuWaitExternalSemaphoresAsync
}
