"""Vulkan's C declarations that this backend uses; written by tools/make_vulkan_declarations.py."""

from __future__ import annotations

CDEF = """
typedef int32_t VkStructureType;
typedef uint32_t VkBool32;
typedef uint32_t VkFlags;
typedef VkFlags VkShaderStageFlags;
typedef VkFlags VkSubgroupFeatureFlags;
typedef int32_t VkPointClippingBehavior;
typedef uint64_t VkDeviceSize;
typedef struct VkPhysicalDeviceVulkan11Properties { VkStructureType sType; void *pNext; uint8_t deviceUUID[16]; uint8_t
  driverUUID[16]; uint8_t deviceLUID[8]; uint32_t deviceNodeMask; VkBool32 deviceLUIDValid; uint32_t subgroupSize;
  VkShaderStageFlags subgroupSupportedStages; VkSubgroupFeatureFlags subgroupSupportedOperations; VkBool32
  subgroupQuadOperationsInAllStages; VkPointClippingBehavior pointClippingBehavior; uint32_t maxMultiviewViewCount; uint32_t
  maxMultiviewInstanceIndex; VkBool32 protectedNoFault; uint32_t maxPerSetDescriptors; VkDeviceSize maxMemoryAllocationSize; }
  VkPhysicalDeviceVulkan11Properties;
typedef int32_t VkDriverId;
typedef struct VkConformanceVersion { uint8_t major; uint8_t minor; uint8_t subminor; uint8_t patch; } VkConformanceVersion;
typedef int32_t VkShaderFloatControlsIndependence;
typedef VkFlags VkResolveModeFlags;
typedef VkFlags VkSampleCountFlags;
typedef struct VkPhysicalDeviceVulkan12Properties { VkStructureType sType; void *pNext; VkDriverId driverID; char
  driverName[256]; char driverInfo[256]; VkConformanceVersion conformanceVersion; VkShaderFloatControlsIndependence
  denormBehaviorIndependence; VkShaderFloatControlsIndependence roundingModeIndependence; VkBool32
  shaderSignedZeroInfNanPreserveFloat16; VkBool32 shaderSignedZeroInfNanPreserveFloat32; VkBool32
  shaderSignedZeroInfNanPreserveFloat64; VkBool32 shaderDenormPreserveFloat16; VkBool32 shaderDenormPreserveFloat32; VkBool32
  shaderDenormPreserveFloat64; VkBool32 shaderDenormFlushToZeroFloat16; VkBool32 shaderDenormFlushToZeroFloat32; VkBool32
  shaderDenormFlushToZeroFloat64; VkBool32 shaderRoundingModeRTEFloat16; VkBool32 shaderRoundingModeRTEFloat32; VkBool32
  shaderRoundingModeRTEFloat64; VkBool32 shaderRoundingModeRTZFloat16; VkBool32 shaderRoundingModeRTZFloat32; VkBool32
  shaderRoundingModeRTZFloat64; uint32_t maxUpdateAfterBindDescriptorsInAllPools; VkBool32
  shaderUniformBufferArrayNonUniformIndexingNative; VkBool32 shaderSampledImageArrayNonUniformIndexingNative; VkBool32
  shaderStorageBufferArrayNonUniformIndexingNative; VkBool32 shaderStorageImageArrayNonUniformIndexingNative; VkBool32
  shaderInputAttachmentArrayNonUniformIndexingNative; VkBool32 robustBufferAccessUpdateAfterBind; VkBool32
  quadDivergentImplicitLod; uint32_t maxPerStageDescriptorUpdateAfterBindSamplers; uint32_t
  maxPerStageDescriptorUpdateAfterBindUniformBuffers; uint32_t maxPerStageDescriptorUpdateAfterBindStorageBuffers; uint32_t
  maxPerStageDescriptorUpdateAfterBindSampledImages; uint32_t maxPerStageDescriptorUpdateAfterBindStorageImages; uint32_t
  maxPerStageDescriptorUpdateAfterBindInputAttachments; uint32_t maxPerStageUpdateAfterBindResources; uint32_t
  maxDescriptorSetUpdateAfterBindSamplers; uint32_t maxDescriptorSetUpdateAfterBindUniformBuffers; uint32_t
  maxDescriptorSetUpdateAfterBindUniformBuffersDynamic; uint32_t maxDescriptorSetUpdateAfterBindStorageBuffers; uint32_t
  maxDescriptorSetUpdateAfterBindStorageBuffersDynamic; uint32_t maxDescriptorSetUpdateAfterBindSampledImages; uint32_t
  maxDescriptorSetUpdateAfterBindStorageImages; uint32_t maxDescriptorSetUpdateAfterBindInputAttachments; VkResolveModeFlags
  supportedDepthResolveModes; VkResolveModeFlags supportedStencilResolveModes; VkBool32 independentResolveNone; VkBool32
  independentResolve; VkBool32 filterMinmaxSingleComponentFormats; VkBool32 filterMinmaxImageComponentMapping; uint64_t
  maxTimelineSemaphoreValueDifference; VkSampleCountFlags framebufferIntegerColorSampleCounts; }
  VkPhysicalDeviceVulkan12Properties;
typedef struct VkPhysicalDeviceVulkan13Properties { VkStructureType sType; void *pNext; uint32_t minSubgroupSize; uint32_t
  maxSubgroupSize; uint32_t maxComputeWorkgroupSubgroups; VkShaderStageFlags requiredSubgroupSizeStages; uint32_t
  maxInlineUniformBlockSize; uint32_t maxPerStageDescriptorInlineUniformBlocks; uint32_t
  maxPerStageDescriptorUpdateAfterBindInlineUniformBlocks; uint32_t maxDescriptorSetInlineUniformBlocks; uint32_t
  maxDescriptorSetUpdateAfterBindInlineUniformBlocks; uint32_t maxInlineUniformTotalSize; VkBool32
  integerDotProduct8BitUnsignedAccelerated; VkBool32 integerDotProduct8BitSignedAccelerated; VkBool32
  integerDotProduct8BitMixedSignednessAccelerated; VkBool32 integerDotProduct4x8BitPackedUnsignedAccelerated; VkBool32
  integerDotProduct4x8BitPackedSignedAccelerated; VkBool32 integerDotProduct4x8BitPackedMixedSignednessAccelerated; VkBool32
  integerDotProduct16BitUnsignedAccelerated; VkBool32 integerDotProduct16BitSignedAccelerated; VkBool32
  integerDotProduct16BitMixedSignednessAccelerated; VkBool32 integerDotProduct32BitUnsignedAccelerated; VkBool32
  integerDotProduct32BitSignedAccelerated; VkBool32 integerDotProduct32BitMixedSignednessAccelerated; VkBool32
  integerDotProduct64BitUnsignedAccelerated; VkBool32 integerDotProduct64BitSignedAccelerated; VkBool32
  integerDotProduct64BitMixedSignednessAccelerated; VkBool32 integerDotProductAccumulatingSaturating8BitUnsignedAccelerated;
  VkBool32 integerDotProductAccumulatingSaturating8BitSignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating8BitMixedSignednessAccelerated; VkBool32
  integerDotProductAccumulatingSaturating4x8BitPackedUnsignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating4x8BitPackedSignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating4x8BitPackedMixedSignednessAccelerated; VkBool32
  integerDotProductAccumulatingSaturating16BitUnsignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating16BitSignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating16BitMixedSignednessAccelerated; VkBool32
  integerDotProductAccumulatingSaturating32BitUnsignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating32BitSignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating32BitMixedSignednessAccelerated; VkBool32
  integerDotProductAccumulatingSaturating64BitUnsignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating64BitSignedAccelerated; VkBool32
  integerDotProductAccumulatingSaturating64BitMixedSignednessAccelerated; VkDeviceSize storageTexelBufferOffsetAlignmentBytes;
  VkBool32 storageTexelBufferOffsetSingleTexelAlignment; VkDeviceSize uniformTexelBufferOffsetAlignmentBytes; VkBool32
  uniformTexelBufferOffsetSingleTexelAlignment; VkDeviceSize maxBufferSize; } VkPhysicalDeviceVulkan13Properties;
typedef struct VkPhysicalDeviceVulkan11Features { VkStructureType sType; void *pNext; VkBool32 storageBuffer16BitAccess;
  VkBool32 uniformAndStorageBuffer16BitAccess; VkBool32 storagePushConstant16; VkBool32 storageInputOutput16; VkBool32
  multiview; VkBool32 multiviewGeometryShader; VkBool32 multiviewTessellationShader; VkBool32 variablePointersStorageBuffer;
  VkBool32 variablePointers; VkBool32 protectedMemory; VkBool32 samplerYcbcrConversion; VkBool32 shaderDrawParameters; }
  VkPhysicalDeviceVulkan11Features;
typedef struct VkPhysicalDeviceVulkan12Features { VkStructureType sType; void *pNext; VkBool32 samplerMirrorClampToEdge;
  VkBool32 drawIndirectCount; VkBool32 storageBuffer8BitAccess; VkBool32 uniformAndStorageBuffer8BitAccess; VkBool32
  storagePushConstant8; VkBool32 shaderBufferInt64Atomics; VkBool32 shaderSharedInt64Atomics; VkBool32 shaderFloat16; VkBool32
  shaderInt8; VkBool32 descriptorIndexing; VkBool32 shaderInputAttachmentArrayDynamicIndexing; VkBool32
  shaderUniformTexelBufferArrayDynamicIndexing; VkBool32 shaderStorageTexelBufferArrayDynamicIndexing; VkBool32
  shaderUniformBufferArrayNonUniformIndexing; VkBool32 shaderSampledImageArrayNonUniformIndexing; VkBool32
  shaderStorageBufferArrayNonUniformIndexing; VkBool32 shaderStorageImageArrayNonUniformIndexing; VkBool32
  shaderInputAttachmentArrayNonUniformIndexing; VkBool32 shaderUniformTexelBufferArrayNonUniformIndexing; VkBool32
  shaderStorageTexelBufferArrayNonUniformIndexing; VkBool32 descriptorBindingUniformBufferUpdateAfterBind; VkBool32
  descriptorBindingSampledImageUpdateAfterBind; VkBool32 descriptorBindingStorageImageUpdateAfterBind; VkBool32
  descriptorBindingStorageBufferUpdateAfterBind; VkBool32 descriptorBindingUniformTexelBufferUpdateAfterBind; VkBool32
  descriptorBindingStorageTexelBufferUpdateAfterBind; VkBool32 descriptorBindingUpdateUnusedWhilePending; VkBool32
  descriptorBindingPartiallyBound; VkBool32 descriptorBindingVariableDescriptorCount; VkBool32 runtimeDescriptorArray;
  VkBool32 samplerFilterMinmax; VkBool32 scalarBlockLayout; VkBool32 imagelessFramebuffer; VkBool32
  uniformBufferStandardLayout; VkBool32 shaderSubgroupExtendedTypes; VkBool32 separateDepthStencilLayouts; VkBool32
  hostQueryReset; VkBool32 timelineSemaphore; VkBool32 bufferDeviceAddress; VkBool32 bufferDeviceAddressCaptureReplay;
  VkBool32 bufferDeviceAddressMultiDevice; VkBool32 vulkanMemoryModel; VkBool32 vulkanMemoryModelDeviceScope; VkBool32
  vulkanMemoryModelAvailabilityVisibilityChains; VkBool32 shaderOutputViewportIndex; VkBool32 shaderOutputLayer; VkBool32
  subgroupBroadcastDynamicId; } VkPhysicalDeviceVulkan12Features;
typedef struct VkPhysicalDeviceVulkan13Features { VkStructureType sType; void *pNext; VkBool32 robustImageAccess; VkBool32
  inlineUniformBlock; VkBool32 descriptorBindingInlineUniformBlockUpdateAfterBind; VkBool32 pipelineCreationCacheControl;
  VkBool32 privateData; VkBool32 shaderDemoteToHelperInvocation; VkBool32 shaderTerminateInvocation; VkBool32
  subgroupSizeControl; VkBool32 computeFullSubgroups; VkBool32 synchronization2; VkBool32 textureCompressionASTC_HDR; VkBool32
  shaderZeroInitializeWorkgroupMemory; VkBool32 dynamicRendering; VkBool32 shaderIntegerDotProduct; VkBool32 maintenance4; }
  VkPhysicalDeviceVulkan13Features;
typedef struct VkPhysicalDeviceMemoryBudgetPropertiesEXT { VkStructureType sType; void *pNext; VkDeviceSize heapBudget[16];
  VkDeviceSize heapUsage[16]; } VkPhysicalDeviceMemoryBudgetPropertiesEXT;
typedef struct VkPhysicalDeviceRobustness2FeaturesEXT { VkStructureType sType; void *pNext; VkBool32 robustBufferAccess2;
  VkBool32 robustImageAccess2; VkBool32 nullDescriptor; } VkPhysicalDeviceRobustness2FeaturesEXT;
typedef struct VkPhysicalDevicePipelineRobustnessFeaturesEXT { VkStructureType sType; void *pNext; VkBool32
  pipelineRobustness; } VkPhysicalDevicePipelineRobustnessFeaturesEXT;
typedef int32_t VkPipelineRobustnessBufferBehaviorEXT;
typedef int32_t VkPipelineRobustnessImageBehaviorEXT;
typedef struct VkPipelineRobustnessCreateInfoEXT { VkStructureType sType; const void *pNext;
  VkPipelineRobustnessBufferBehaviorEXT storageBuffers; VkPipelineRobustnessBufferBehaviorEXT uniformBuffers;
  VkPipelineRobustnessBufferBehaviorEXT vertexInputs; VkPipelineRobustnessImageBehaviorEXT images; }
  VkPipelineRobustnessCreateInfoEXT;
typedef int32_t VkSemaphoreType;
typedef struct VkSemaphoreTypeCreateInfo { VkStructureType sType; const void *pNext; VkSemaphoreType semaphoreType; uint64_t
  initialValue; } VkSemaphoreTypeCreateInfo;
typedef struct VkTimelineSemaphoreSubmitInfo { VkStructureType sType; const void *pNext; uint32_t waitSemaphoreValueCount;
  const uint64_t *pWaitSemaphoreValues; uint32_t signalSemaphoreValueCount; const uint64_t *pSignalSemaphoreValues; }
  VkTimelineSemaphoreSubmitInfo;
typedef VkFlags VkInstanceCreateFlags;
typedef struct VkApplicationInfo { VkStructureType sType; const void *pNext; const char *pApplicationName; uint32_t
  applicationVersion; const char *pEngineName; uint32_t engineVersion; uint32_t apiVersion; } VkApplicationInfo;
typedef struct VkInstanceCreateInfo { VkStructureType sType; const void *pNext; VkInstanceCreateFlags flags; const
  VkApplicationInfo *pApplicationInfo; uint32_t enabledLayerCount; const char **ppEnabledLayerNames; uint32_t
  enabledExtensionCount; const char **ppEnabledExtensionNames; } VkInstanceCreateInfo;
typedef struct VkInstance_T *VkInstance;
typedef int32_t VkResult;
typedef VkResult (*PFN_vkCreateInstance)(const VkInstanceCreateInfo *pCreateInfo, const void *pAllocator, VkInstance
  *pInstance);
typedef void (*PFN_vkDestroyInstance)(VkInstance instance, const void *pAllocator);
typedef VkResult (*PFN_vkEnumerateInstanceVersion)(uint32_t *pApiVersion);
typedef struct VkPhysicalDevice_T *VkPhysicalDevice;
typedef VkResult (*PFN_vkEnumeratePhysicalDevices)(VkInstance instance, uint32_t *pPhysicalDeviceCount, VkPhysicalDevice
  *pPhysicalDevices);
typedef int32_t VkPhysicalDeviceType;
typedef struct VkPhysicalDeviceLimits { uint32_t maxImageDimension1D; uint32_t maxImageDimension2D; uint32_t
  maxImageDimension3D; uint32_t maxImageDimensionCube; uint32_t maxImageArrayLayers; uint32_t maxTexelBufferElements; uint32_t
  maxUniformBufferRange; uint32_t maxStorageBufferRange; uint32_t maxPushConstantsSize; uint32_t maxMemoryAllocationCount;
  uint32_t maxSamplerAllocationCount; VkDeviceSize bufferImageGranularity; VkDeviceSize sparseAddressSpaceSize; uint32_t
  maxBoundDescriptorSets; uint32_t maxPerStageDescriptorSamplers; uint32_t maxPerStageDescriptorUniformBuffers; uint32_t
  maxPerStageDescriptorStorageBuffers; uint32_t maxPerStageDescriptorSampledImages; uint32_t
  maxPerStageDescriptorStorageImages; uint32_t maxPerStageDescriptorInputAttachments; uint32_t maxPerStageResources; uint32_t
  maxDescriptorSetSamplers; uint32_t maxDescriptorSetUniformBuffers; uint32_t maxDescriptorSetUniformBuffersDynamic; uint32_t
  maxDescriptorSetStorageBuffers; uint32_t maxDescriptorSetStorageBuffersDynamic; uint32_t maxDescriptorSetSampledImages;
  uint32_t maxDescriptorSetStorageImages; uint32_t maxDescriptorSetInputAttachments; uint32_t maxVertexInputAttributes;
  uint32_t maxVertexInputBindings; uint32_t maxVertexInputAttributeOffset; uint32_t maxVertexInputBindingStride; uint32_t
  maxVertexOutputComponents; uint32_t maxTessellationGenerationLevel; uint32_t maxTessellationPatchSize; uint32_t
  maxTessellationControlPerVertexInputComponents; uint32_t maxTessellationControlPerVertexOutputComponents; uint32_t
  maxTessellationControlPerPatchOutputComponents; uint32_t maxTessellationControlTotalOutputComponents; uint32_t
  maxTessellationEvaluationInputComponents; uint32_t maxTessellationEvaluationOutputComponents; uint32_t
  maxGeometryShaderInvocations; uint32_t maxGeometryInputComponents; uint32_t maxGeometryOutputComponents; uint32_t
  maxGeometryOutputVertices; uint32_t maxGeometryTotalOutputComponents; uint32_t maxFragmentInputComponents; uint32_t
  maxFragmentOutputAttachments; uint32_t maxFragmentDualSrcAttachments; uint32_t maxFragmentCombinedOutputResources; uint32_t
  maxComputeSharedMemorySize; uint32_t maxComputeWorkGroupCount[3]; uint32_t maxComputeWorkGroupInvocations; uint32_t
  maxComputeWorkGroupSize[3]; uint32_t subPixelPrecisionBits; uint32_t subTexelPrecisionBits; uint32_t mipmapPrecisionBits;
  uint32_t maxDrawIndexedIndexValue; uint32_t maxDrawIndirectCount; float maxSamplerLodBias; float maxSamplerAnisotropy;
  uint32_t maxViewports; uint32_t maxViewportDimensions[2]; float viewportBoundsRange[2]; uint32_t viewportSubPixelBits;
  size_t minMemoryMapAlignment; VkDeviceSize minTexelBufferOffsetAlignment; VkDeviceSize minUniformBufferOffsetAlignment;
  VkDeviceSize minStorageBufferOffsetAlignment; int32_t minTexelOffset; uint32_t maxTexelOffset; int32_t minTexelGatherOffset;
  uint32_t maxTexelGatherOffset; float minInterpolationOffset; float maxInterpolationOffset; uint32_t
  subPixelInterpolationOffsetBits; uint32_t maxFramebufferWidth; uint32_t maxFramebufferHeight; uint32_t maxFramebufferLayers;
  VkSampleCountFlags framebufferColorSampleCounts; VkSampleCountFlags framebufferDepthSampleCounts; VkSampleCountFlags
  framebufferStencilSampleCounts; VkSampleCountFlags framebufferNoAttachmentsSampleCounts; uint32_t maxColorAttachments;
  VkSampleCountFlags sampledImageColorSampleCounts; VkSampleCountFlags sampledImageIntegerSampleCounts; VkSampleCountFlags
  sampledImageDepthSampleCounts; VkSampleCountFlags sampledImageStencilSampleCounts; VkSampleCountFlags
  storageImageSampleCounts; uint32_t maxSampleMaskWords; VkBool32 timestampComputeAndGraphics; float timestampPeriod; uint32_t
  maxClipDistances; uint32_t maxCullDistances; uint32_t maxCombinedClipAndCullDistances; uint32_t discreteQueuePriorities;
  float pointSizeRange[2]; float lineWidthRange[2]; float pointSizeGranularity; float lineWidthGranularity; VkBool32
  strictLines; VkBool32 standardSampleLocations; VkDeviceSize optimalBufferCopyOffsetAlignment; VkDeviceSize
  optimalBufferCopyRowPitchAlignment; VkDeviceSize nonCoherentAtomSize; } VkPhysicalDeviceLimits;
typedef struct VkPhysicalDeviceSparseProperties { VkBool32 residencyStandard2DBlockShape; VkBool32
  residencyStandard2DMultisampleBlockShape; VkBool32 residencyStandard3DBlockShape; VkBool32 residencyAlignedMipSize; VkBool32
  residencyNonResidentStrict; } VkPhysicalDeviceSparseProperties;
typedef struct VkPhysicalDeviceProperties { uint32_t apiVersion; uint32_t driverVersion; uint32_t vendorID; uint32_t deviceID;
  VkPhysicalDeviceType deviceType; char deviceName[256]; uint8_t pipelineCacheUUID[16]; VkPhysicalDeviceLimits limits;
  VkPhysicalDeviceSparseProperties sparseProperties; } VkPhysicalDeviceProperties;
typedef struct VkPhysicalDeviceProperties2 { VkStructureType sType; void *pNext; VkPhysicalDeviceProperties properties; }
  VkPhysicalDeviceProperties2;
typedef void (*PFN_vkGetPhysicalDeviceProperties2)(VkPhysicalDevice physicalDevice, VkPhysicalDeviceProperties2 *pProperties);
typedef struct VkPhysicalDeviceFeatures { VkBool32 robustBufferAccess; VkBool32 fullDrawIndexUint32; VkBool32 imageCubeArray;
  VkBool32 independentBlend; VkBool32 geometryShader; VkBool32 tessellationShader; VkBool32 sampleRateShading; VkBool32
  dualSrcBlend; VkBool32 logicOp; VkBool32 multiDrawIndirect; VkBool32 drawIndirectFirstInstance; VkBool32 depthClamp;
  VkBool32 depthBiasClamp; VkBool32 fillModeNonSolid; VkBool32 depthBounds; VkBool32 wideLines; VkBool32 largePoints; VkBool32
  alphaToOne; VkBool32 multiViewport; VkBool32 samplerAnisotropy; VkBool32 textureCompressionETC2; VkBool32
  textureCompressionASTC_LDR; VkBool32 textureCompressionBC; VkBool32 occlusionQueryPrecise; VkBool32 pipelineStatisticsQuery;
  VkBool32 vertexPipelineStoresAndAtomics; VkBool32 fragmentStoresAndAtomics; VkBool32 shaderTessellationAndGeometryPointSize;
  VkBool32 shaderImageGatherExtended; VkBool32 shaderStorageImageExtendedFormats; VkBool32 shaderStorageImageMultisample;
  VkBool32 shaderStorageImageReadWithoutFormat; VkBool32 shaderStorageImageWriteWithoutFormat; VkBool32
  shaderUniformBufferArrayDynamicIndexing; VkBool32 shaderSampledImageArrayDynamicIndexing; VkBool32
  shaderStorageBufferArrayDynamicIndexing; VkBool32 shaderStorageImageArrayDynamicIndexing; VkBool32 shaderClipDistance;
  VkBool32 shaderCullDistance; VkBool32 shaderFloat64; VkBool32 shaderInt64; VkBool32 shaderInt16; VkBool32
  shaderResourceResidency; VkBool32 shaderResourceMinLod; VkBool32 sparseBinding; VkBool32 sparseResidencyBuffer; VkBool32
  sparseResidencyImage2D; VkBool32 sparseResidencyImage3D; VkBool32 sparseResidency2Samples; VkBool32 sparseResidency4Samples;
  VkBool32 sparseResidency8Samples; VkBool32 sparseResidency16Samples; VkBool32 sparseResidencyAliased; VkBool32
  variableMultisampleRate; VkBool32 inheritedQueries; } VkPhysicalDeviceFeatures;
typedef struct VkPhysicalDeviceFeatures2 { VkStructureType sType; void *pNext; VkPhysicalDeviceFeatures features; }
  VkPhysicalDeviceFeatures2;
typedef void (*PFN_vkGetPhysicalDeviceFeatures2)(VkPhysicalDevice physicalDevice, VkPhysicalDeviceFeatures2 *pFeatures);
typedef VkFlags VkMemoryPropertyFlags;
typedef struct VkMemoryType { VkMemoryPropertyFlags propertyFlags; uint32_t heapIndex; } VkMemoryType;
typedef VkFlags VkMemoryHeapFlags;
typedef struct VkMemoryHeap { VkDeviceSize size; VkMemoryHeapFlags flags; } VkMemoryHeap;
typedef struct VkPhysicalDeviceMemoryProperties { uint32_t memoryTypeCount; VkMemoryType memoryTypes[32]; uint32_t
  memoryHeapCount; VkMemoryHeap memoryHeaps[16]; } VkPhysicalDeviceMemoryProperties;
typedef struct VkPhysicalDeviceMemoryProperties2 { VkStructureType sType; void *pNext; VkPhysicalDeviceMemoryProperties
  memoryProperties; } VkPhysicalDeviceMemoryProperties2;
typedef void (*PFN_vkGetPhysicalDeviceMemoryProperties2)(VkPhysicalDevice physicalDevice, VkPhysicalDeviceMemoryProperties2
  *pMemoryProperties);
typedef VkFlags VkQueueFlags;
typedef struct VkExtent3D { uint32_t width; uint32_t height; uint32_t depth; } VkExtent3D;
typedef struct VkQueueFamilyProperties { VkQueueFlags queueFlags; uint32_t queueCount; uint32_t timestampValidBits; VkExtent3D
  minImageTransferGranularity; } VkQueueFamilyProperties;
typedef void (*PFN_vkGetPhysicalDeviceQueueFamilyProperties)(VkPhysicalDevice physicalDevice, uint32_t
  *pQueueFamilyPropertyCount, VkQueueFamilyProperties *pQueueFamilyProperties);
typedef struct VkExtensionProperties { char extensionName[256]; uint32_t specVersion; } VkExtensionProperties;
typedef VkResult (*PFN_vkEnumerateDeviceExtensionProperties)(VkPhysicalDevice physicalDevice, const char *pLayerName, uint32_t
  *pPropertyCount, VkExtensionProperties *pProperties);
typedef VkFlags VkDeviceCreateFlags;
typedef VkFlags VkDeviceQueueCreateFlags;
typedef struct VkDeviceQueueCreateInfo { VkStructureType sType; const void *pNext; VkDeviceQueueCreateFlags flags; uint32_t
  queueFamilyIndex; uint32_t queueCount; const float *pQueuePriorities; } VkDeviceQueueCreateInfo;
typedef struct VkDeviceCreateInfo { VkStructureType sType; const void *pNext; VkDeviceCreateFlags flags; uint32_t
  queueCreateInfoCount; const VkDeviceQueueCreateInfo *pQueueCreateInfos; uint32_t enabledLayerCount; const char
  **ppEnabledLayerNames; uint32_t enabledExtensionCount; const char **ppEnabledExtensionNames; const VkPhysicalDeviceFeatures
  *pEnabledFeatures; } VkDeviceCreateInfo;
typedef struct VkDevice_T *VkDevice;
typedef VkResult (*PFN_vkCreateDevice)(VkPhysicalDevice physicalDevice, const VkDeviceCreateInfo *pCreateInfo, const void
  *pAllocator, VkDevice *pDevice);
typedef void (*PFN_vkDestroyDevice)(VkDevice device, const void *pAllocator);
typedef void (*PFN_vkVoidFunction)(void);
typedef PFN_vkVoidFunction (*PFN_vkGetDeviceProcAddr)(VkDevice device, const char *pName);
typedef struct VkQueue_T *VkQueue;
typedef void (*PFN_vkGetDeviceQueue)(VkDevice device, uint32_t queueFamilyIndex, uint32_t queueIndex, VkQueue *pQueue);
typedef VkResult (*PFN_vkDeviceWaitIdle)(VkDevice device);
typedef VkFlags VkBufferCreateFlags;
typedef VkFlags VkBufferUsageFlags;
typedef int32_t VkSharingMode;
typedef struct VkBufferCreateInfo { VkStructureType sType; const void *pNext; VkBufferCreateFlags flags; VkDeviceSize size;
  VkBufferUsageFlags usage; VkSharingMode sharingMode; uint32_t queueFamilyIndexCount; const uint32_t *pQueueFamilyIndices; }
  VkBufferCreateInfo;
typedef uint64_t VkBuffer;
typedef VkResult (*PFN_vkCreateBuffer)(VkDevice device, const VkBufferCreateInfo *pCreateInfo, const void *pAllocator,
  VkBuffer *pBuffer);
typedef void (*PFN_vkDestroyBuffer)(VkDevice device, VkBuffer buffer, const void *pAllocator);
typedef struct VkMemoryRequirements { VkDeviceSize size; VkDeviceSize alignment; uint32_t memoryTypeBits; }
  VkMemoryRequirements;
typedef void (*PFN_vkGetBufferMemoryRequirements)(VkDevice device, VkBuffer buffer, VkMemoryRequirements
  *pMemoryRequirements);
typedef struct VkMemoryAllocateInfo { VkStructureType sType; const void *pNext; VkDeviceSize allocationSize; uint32_t
  memoryTypeIndex; } VkMemoryAllocateInfo;
typedef uint64_t VkDeviceMemory;
typedef VkResult (*PFN_vkAllocateMemory)(VkDevice device, const VkMemoryAllocateInfo *pAllocateInfo, const void *pAllocator,
  VkDeviceMemory *pMemory);
typedef void (*PFN_vkFreeMemory)(VkDevice device, VkDeviceMemory memory, const void *pAllocator);
typedef VkResult (*PFN_vkBindBufferMemory)(VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize
  memoryOffset);
typedef VkFlags VkMemoryMapFlags;
typedef VkResult (*PFN_vkMapMemory)(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
  VkMemoryMapFlags flags, void **ppData);
typedef VkFlags VkShaderModuleCreateFlags;
typedef struct VkShaderModuleCreateInfo { VkStructureType sType; const void *pNext; VkShaderModuleCreateFlags flags; size_t
  codeSize; const uint32_t *pCode; } VkShaderModuleCreateInfo;
typedef uint64_t VkShaderModule;
typedef VkResult (*PFN_vkCreateShaderModule)(VkDevice device, const VkShaderModuleCreateInfo *pCreateInfo, const void
  *pAllocator, VkShaderModule *pShaderModule);
typedef void (*PFN_vkDestroyShaderModule)(VkDevice device, VkShaderModule shaderModule, const void *pAllocator);
typedef VkFlags VkDescriptorSetLayoutCreateFlags;
typedef int32_t VkDescriptorType;
typedef uint64_t VkSampler;
typedef struct VkDescriptorSetLayoutBinding { uint32_t binding; VkDescriptorType descriptorType; uint32_t descriptorCount;
  VkShaderStageFlags stageFlags; const VkSampler *pImmutableSamplers; } VkDescriptorSetLayoutBinding;
typedef struct VkDescriptorSetLayoutCreateInfo { VkStructureType sType; const void *pNext; VkDescriptorSetLayoutCreateFlags
  flags; uint32_t bindingCount; const VkDescriptorSetLayoutBinding *pBindings; } VkDescriptorSetLayoutCreateInfo;
typedef uint64_t VkDescriptorSetLayout;
typedef VkResult (*PFN_vkCreateDescriptorSetLayout)(VkDevice device, const VkDescriptorSetLayoutCreateInfo *pCreateInfo, const
  void *pAllocator, VkDescriptorSetLayout *pSetLayout);
typedef void (*PFN_vkDestroyDescriptorSetLayout)(VkDevice device, VkDescriptorSetLayout descriptorSetLayout, const void
  *pAllocator);
typedef VkFlags VkPipelineLayoutCreateFlags;
typedef struct VkPipelineLayoutCreateInfo { VkStructureType sType; const void *pNext; VkPipelineLayoutCreateFlags flags;
  uint32_t setLayoutCount; const VkDescriptorSetLayout *pSetLayouts; uint32_t pushConstantRangeCount; const void
  *pPushConstantRanges; } VkPipelineLayoutCreateInfo;
typedef uint64_t VkPipelineLayout;
typedef VkResult (*PFN_vkCreatePipelineLayout)(VkDevice device, const VkPipelineLayoutCreateInfo *pCreateInfo, const void
  *pAllocator, VkPipelineLayout *pPipelineLayout);
typedef void (*PFN_vkDestroyPipelineLayout)(VkDevice device, VkPipelineLayout pipelineLayout, const void *pAllocator);
typedef VkFlags VkPipelineCacheCreateFlags;
typedef struct VkPipelineCacheCreateInfo { VkStructureType sType; const void *pNext; VkPipelineCacheCreateFlags flags; size_t
  initialDataSize; const void *pInitialData; } VkPipelineCacheCreateInfo;
typedef uint64_t VkPipelineCache;
typedef VkResult (*PFN_vkCreatePipelineCache)(VkDevice device, const VkPipelineCacheCreateInfo *pCreateInfo, const void
  *pAllocator, VkPipelineCache *pPipelineCache);
typedef void (*PFN_vkDestroyPipelineCache)(VkDevice device, VkPipelineCache pipelineCache, const void *pAllocator);
typedef VkResult (*PFN_vkGetPipelineCacheData)(VkDevice device, VkPipelineCache pipelineCache, size_t *pDataSize, void
  *pData);
typedef VkFlags VkPipelineCreateFlags;
typedef VkFlags VkPipelineShaderStageCreateFlags;
typedef int32_t VkShaderStageFlagBits;
typedef struct VkSpecializationInfo { uint32_t mapEntryCount; const void *pMapEntries; size_t dataSize; const void *pData; }
  VkSpecializationInfo;
typedef struct VkPipelineShaderStageCreateInfo { VkStructureType sType; const void *pNext; VkPipelineShaderStageCreateFlags
  flags; VkShaderStageFlagBits stage; VkShaderModule module; const char *pName; const VkSpecializationInfo
  *pSpecializationInfo; } VkPipelineShaderStageCreateInfo;
typedef uint64_t VkPipeline;
typedef struct VkComputePipelineCreateInfo { VkStructureType sType; const void *pNext; VkPipelineCreateFlags flags;
  VkPipelineShaderStageCreateInfo stage; VkPipelineLayout layout; VkPipeline basePipelineHandle; int32_t basePipelineIndex; }
  VkComputePipelineCreateInfo;
typedef VkResult (*PFN_vkCreateComputePipelines)(VkDevice device, VkPipelineCache pipelineCache, uint32_t createInfoCount,
  const VkComputePipelineCreateInfo *pCreateInfos, const void *pAllocator, VkPipeline *pPipelines);
typedef void (*PFN_vkDestroyPipeline)(VkDevice device, VkPipeline pipeline, const void *pAllocator);
typedef VkFlags VkDescriptorPoolCreateFlags;
typedef struct VkDescriptorPoolSize { VkDescriptorType type; uint32_t descriptorCount; } VkDescriptorPoolSize;
typedef struct VkDescriptorPoolCreateInfo { VkStructureType sType; const void *pNext; VkDescriptorPoolCreateFlags flags;
  uint32_t maxSets; uint32_t poolSizeCount; const VkDescriptorPoolSize *pPoolSizes; } VkDescriptorPoolCreateInfo;
typedef uint64_t VkDescriptorPool;
typedef VkResult (*PFN_vkCreateDescriptorPool)(VkDevice device, const VkDescriptorPoolCreateInfo *pCreateInfo, const void
  *pAllocator, VkDescriptorPool *pDescriptorPool);
typedef void (*PFN_vkDestroyDescriptorPool)(VkDevice device, VkDescriptorPool descriptorPool, const void *pAllocator);
typedef struct VkDescriptorSetAllocateInfo { VkStructureType sType; const void *pNext; VkDescriptorPool descriptorPool;
  uint32_t descriptorSetCount; const VkDescriptorSetLayout *pSetLayouts; } VkDescriptorSetAllocateInfo;
typedef uint64_t VkDescriptorSet;
typedef VkResult (*PFN_vkAllocateDescriptorSets)(VkDevice device, const VkDescriptorSetAllocateInfo *pAllocateInfo,
  VkDescriptorSet *pDescriptorSets);
typedef VkResult (*PFN_vkFreeDescriptorSets)(VkDevice device, VkDescriptorPool descriptorPool, uint32_t descriptorSetCount,
  const VkDescriptorSet *pDescriptorSets);
typedef struct VkDescriptorBufferInfo { VkBuffer buffer; VkDeviceSize offset; VkDeviceSize range; } VkDescriptorBufferInfo;
typedef uint64_t VkBufferView;
typedef struct VkWriteDescriptorSet { VkStructureType sType; const void *pNext; VkDescriptorSet dstSet; uint32_t dstBinding;
  uint32_t dstArrayElement; uint32_t descriptorCount; VkDescriptorType descriptorType; const void *pImageInfo; const
  VkDescriptorBufferInfo *pBufferInfo; const VkBufferView *pTexelBufferView; } VkWriteDescriptorSet;
typedef void (*PFN_vkUpdateDescriptorSets)(VkDevice device, uint32_t descriptorWriteCount, const VkWriteDescriptorSet
  *pDescriptorWrites, uint32_t descriptorCopyCount, const void *pDescriptorCopies);
typedef VkFlags VkCommandPoolCreateFlags;
typedef struct VkCommandPoolCreateInfo { VkStructureType sType; const void *pNext; VkCommandPoolCreateFlags flags; uint32_t
  queueFamilyIndex; } VkCommandPoolCreateInfo;
typedef uint64_t VkCommandPool;
typedef VkResult (*PFN_vkCreateCommandPool)(VkDevice device, const VkCommandPoolCreateInfo *pCreateInfo, const void
  *pAllocator, VkCommandPool *pCommandPool);
typedef void (*PFN_vkDestroyCommandPool)(VkDevice device, VkCommandPool commandPool, const void *pAllocator);
typedef int32_t VkCommandBufferLevel;
typedef struct VkCommandBufferAllocateInfo { VkStructureType sType; const void *pNext; VkCommandPool commandPool;
  VkCommandBufferLevel level; uint32_t commandBufferCount; } VkCommandBufferAllocateInfo;
typedef struct VkCommandBuffer_T *VkCommandBuffer;
typedef VkResult (*PFN_vkAllocateCommandBuffers)(VkDevice device, const VkCommandBufferAllocateInfo *pAllocateInfo,
  VkCommandBuffer *pCommandBuffers);
typedef void (*PFN_vkFreeCommandBuffers)(VkDevice device, VkCommandPool commandPool, uint32_t commandBufferCount, const
  VkCommandBuffer *pCommandBuffers);
typedef VkFlags VkCommandBufferUsageFlags;
typedef struct VkCommandBufferBeginInfo { VkStructureType sType; const void *pNext; VkCommandBufferUsageFlags flags; const
  void *pInheritanceInfo; } VkCommandBufferBeginInfo;
typedef VkResult (*PFN_vkBeginCommandBuffer)(VkCommandBuffer commandBuffer, const VkCommandBufferBeginInfo *pBeginInfo);
typedef VkResult (*PFN_vkEndCommandBuffer)(VkCommandBuffer commandBuffer);
typedef int32_t VkPipelineBindPoint;
typedef void (*PFN_vkCmdBindPipeline)(VkCommandBuffer commandBuffer, VkPipelineBindPoint pipelineBindPoint, VkPipeline
  pipeline);
typedef void (*PFN_vkCmdBindDescriptorSets)(VkCommandBuffer commandBuffer, VkPipelineBindPoint pipelineBindPoint,
  VkPipelineLayout layout, uint32_t firstSet, uint32_t descriptorSetCount, const VkDescriptorSet *pDescriptorSets, uint32_t
  dynamicOffsetCount, const uint32_t *pDynamicOffsets);
typedef void (*PFN_vkCmdDispatch)(VkCommandBuffer commandBuffer, uint32_t groupCountX, uint32_t groupCountY, uint32_t
  groupCountZ);
typedef void (*PFN_vkCmdDispatchIndirect)(VkCommandBuffer commandBuffer, VkBuffer buffer, VkDeviceSize offset);
typedef VkFlags VkPipelineStageFlags;
typedef VkFlags VkDependencyFlags;
typedef VkFlags VkAccessFlags;
typedef struct VkMemoryBarrier { VkStructureType sType; const void *pNext; VkAccessFlags srcAccessMask; VkAccessFlags
  dstAccessMask; } VkMemoryBarrier;
typedef void (*PFN_vkCmdPipelineBarrier)(VkCommandBuffer commandBuffer, VkPipelineStageFlags srcStageMask,
  VkPipelineStageFlags dstStageMask, VkDependencyFlags dependencyFlags, uint32_t memoryBarrierCount, const VkMemoryBarrier
  *pMemoryBarriers, uint32_t bufferMemoryBarrierCount, const void *pBufferMemoryBarriers, uint32_t imageMemoryBarrierCount,
  const void *pImageMemoryBarriers);
typedef struct VkBufferCopy { VkDeviceSize srcOffset; VkDeviceSize dstOffset; VkDeviceSize size; } VkBufferCopy;
typedef void (*PFN_vkCmdCopyBuffer)(VkCommandBuffer commandBuffer, VkBuffer srcBuffer, VkBuffer dstBuffer, uint32_t
  regionCount, const VkBufferCopy *pRegions);
typedef void (*PFN_vkCmdFillBuffer)(VkCommandBuffer commandBuffer, VkBuffer dstBuffer, VkDeviceSize dstOffset, VkDeviceSize
  size, uint32_t data);
typedef VkFlags VkQueryPoolCreateFlags;
typedef int32_t VkQueryType;
typedef VkFlags VkQueryPipelineStatisticFlags;
typedef struct VkQueryPoolCreateInfo { VkStructureType sType; const void *pNext; VkQueryPoolCreateFlags flags; VkQueryType
  queryType; uint32_t queryCount; VkQueryPipelineStatisticFlags pipelineStatistics; } VkQueryPoolCreateInfo;
typedef uint64_t VkQueryPool;
typedef VkResult (*PFN_vkCreateQueryPool)(VkDevice device, const VkQueryPoolCreateInfo *pCreateInfo, const void *pAllocator,
  VkQueryPool *pQueryPool);
typedef void (*PFN_vkDestroyQueryPool)(VkDevice device, VkQueryPool queryPool, const void *pAllocator);
typedef void (*PFN_vkCmdResetQueryPool)(VkCommandBuffer commandBuffer, VkQueryPool queryPool, uint32_t firstQuery, uint32_t
  queryCount);
typedef int32_t VkPipelineStageFlagBits;
typedef void (*PFN_vkCmdWriteTimestamp)(VkCommandBuffer commandBuffer, VkPipelineStageFlagBits pipelineStage, VkQueryPool
  queryPool, uint32_t query);
typedef VkFlags VkQueryResultFlags;
typedef void (*PFN_vkCmdCopyQueryPoolResults)(VkCommandBuffer commandBuffer, VkQueryPool queryPool, uint32_t firstQuery,
  uint32_t queryCount, VkBuffer dstBuffer, VkDeviceSize dstOffset, VkDeviceSize stride, VkQueryResultFlags flags);
typedef VkFlags VkSemaphoreCreateFlags;
typedef struct VkSemaphoreCreateInfo { VkStructureType sType; const void *pNext; VkSemaphoreCreateFlags flags; }
  VkSemaphoreCreateInfo;
typedef uint64_t VkSemaphore;
typedef VkResult (*PFN_vkCreateSemaphore)(VkDevice device, const VkSemaphoreCreateInfo *pCreateInfo, const void *pAllocator,
  VkSemaphore *pSemaphore);
typedef void (*PFN_vkDestroySemaphore)(VkDevice device, VkSemaphore semaphore, const void *pAllocator);
typedef VkFlags VkSemaphoreWaitFlags;
typedef struct VkSemaphoreWaitInfo { VkStructureType sType; const void *pNext; VkSemaphoreWaitFlags flags; uint32_t
  semaphoreCount; const VkSemaphore *pSemaphores; const uint64_t *pValues; } VkSemaphoreWaitInfo;
typedef VkResult (*PFN_vkWaitSemaphores)(VkDevice device, const VkSemaphoreWaitInfo *pWaitInfo, uint64_t timeout);
typedef VkResult (*PFN_vkGetSemaphoreCounterValue)(VkDevice device, VkSemaphore semaphore, uint64_t *pValue);
typedef struct VkSubmitInfo { VkStructureType sType; const void *pNext; uint32_t waitSemaphoreCount; const VkSemaphore
  *pWaitSemaphores; const VkPipelineStageFlags *pWaitDstStageMask; uint32_t commandBufferCount; const VkCommandBuffer
  *pCommandBuffers; uint32_t signalSemaphoreCount; const VkSemaphore *pSignalSemaphores; } VkSubmitInfo;
typedef uint64_t VkFence;
typedef VkResult (*PFN_vkQueueSubmit)(VkQueue queue, uint32_t submitCount, const VkSubmitInfo *pSubmits, VkFence fence);
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR { VkStructureType sType; void *pNext; VkBool32 cooperativeMatrix;
  VkBool32 cooperativeMatrixRobustBufferAccess; } VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef struct VkCooperativeMatrixPropertiesKHR { VkStructureType sType; void *pNext; uint32_t MSize; uint32_t NSize; uint32_t
  KSize; int32_t AType; int32_t BType; int32_t CType; int32_t ResultType; VkBool32 saturatingAccumulation; int32_t scope; }
  VkCooperativeMatrixPropertiesKHR;
typedef struct VkPhysicalDeviceShaderBfloat16FeaturesKHR { VkStructureType sType; void *pNext; VkBool32 shaderBFloat16Type;
  VkBool32 shaderBFloat16DotProduct; VkBool32 shaderBFloat16CooperativeMatrix; } VkPhysicalDeviceShaderBfloat16FeaturesKHR;
typedef VkResult (*PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice physicalDevice, uint32_t
  *pPropertyCount, VkCooperativeMatrixPropertiesKHR *pProperties);
"""

# The number in the field `sType` of each struct that has one.
STRUCTURE_TYPES = {
    "VkApplicationInfo": 0,
    "VkBufferCreateInfo": 12,
    "VkCommandBufferAllocateInfo": 40,
    "VkCommandBufferBeginInfo": 42,
    "VkCommandPoolCreateInfo": 39,
    "VkComputePipelineCreateInfo": 29,
    "VkCooperativeMatrixPropertiesKHR": 1000506001,
    "VkDescriptorPoolCreateInfo": 33,
    "VkDescriptorSetAllocateInfo": 34,
    "VkDescriptorSetLayoutCreateInfo": 32,
    "VkDeviceCreateInfo": 3,
    "VkDeviceQueueCreateInfo": 2,
    "VkInstanceCreateInfo": 1,
    "VkMemoryAllocateInfo": 5,
    "VkMemoryBarrier": 46,
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": 1000506000,
    "VkPhysicalDeviceFeatures2": 1000059000,
    "VkPhysicalDeviceMemoryBudgetPropertiesEXT": 1000237000,
    "VkPhysicalDeviceMemoryProperties2": 1000059006,
    "VkPhysicalDevicePipelineRobustnessFeaturesEXT": 1000068001,
    "VkPhysicalDeviceProperties2": 1000059001,
    "VkPhysicalDeviceRobustness2FeaturesEXT": 1000286000,
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": 1000141000,
    "VkPhysicalDeviceVulkan11Features": 49,
    "VkPhysicalDeviceVulkan11Properties": 50,
    "VkPhysicalDeviceVulkan12Features": 51,
    "VkPhysicalDeviceVulkan12Properties": 52,
    "VkPhysicalDeviceVulkan13Features": 53,
    "VkPhysicalDeviceVulkan13Properties": 54,
    "VkPipelineCacheCreateInfo": 17,
    "VkPipelineLayoutCreateInfo": 30,
    "VkPipelineRobustnessCreateInfoEXT": 1000068000,
    "VkPipelineShaderStageCreateInfo": 18,
    "VkQueryPoolCreateInfo": 11,
    "VkSemaphoreCreateInfo": 9,
    "VkSemaphoreTypeCreateInfo": 1000207002,
    "VkSemaphoreWaitInfo": 1000207004,
    "VkShaderModuleCreateInfo": 16,
    "VkSubmitInfo": 4,
    "VkTimelineSemaphoreSubmitInfo": 1000207003,
    "VkWriteDescriptorSet": 35,
}

SUCCESS = 0
TIMEOUT = 2
INCOMPLETE = 5
ERROR_OUT_OF_HOST_MEMORY = -1
ERROR_OUT_OF_DEVICE_MEMORY = -2
ERROR_DEVICE_LOST = -4
ERROR_INITIALIZATION_FAILED = -3
ERROR_INCOMPATIBLE_DRIVER = -9
ERROR_EXTENSION_NOT_PRESENT = -7
ERROR_FEATURE_NOT_PRESENT = -8
ERROR_TOO_MANY_OBJECTS = -10
ERROR_FRAGMENTED_POOL = -12
ERROR_OUT_OF_POOL_MEMORY = -1000069000
ERROR_INVALID_SHADER_NV = -1000012000
ERROR_UNKNOWN = -13
PHYSICAL_DEVICE_TYPE_DISCRETE_GPU = 2
PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU = 1
PHYSICAL_DEVICE_TYPE_CPU = 4
QUEUE_COMPUTE_BIT = 2
QUEUE_GRAPHICS_BIT = 1
MEMORY_HEAP_DEVICE_LOCAL_BIT = 1
MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 1
MEMORY_PROPERTY_HOST_VISIBLE_BIT = 2
MEMORY_PROPERTY_HOST_COHERENT_BIT = 4
MEMORY_PROPERTY_HOST_CACHED_BIT = 8
BUFFER_USAGE_TRANSFER_SRC_BIT = 1
BUFFER_USAGE_TRANSFER_DST_BIT = 2
BUFFER_USAGE_UNIFORM_BUFFER_BIT = 16
BUFFER_USAGE_STORAGE_BUFFER_BIT = 32
BUFFER_USAGE_INDIRECT_BUFFER_BIT = 256
DESCRIPTOR_TYPE_UNIFORM_BUFFER = 6
DESCRIPTOR_TYPE_STORAGE_BUFFER = 7
SHADER_STAGE_COMPUTE_BIT = 32
PIPELINE_BIND_POINT_COMPUTE = 1
DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT = 1
COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 2
COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT = 1
COMMAND_BUFFER_LEVEL_PRIMARY = 0
PIPELINE_STAGE_TOP_OF_PIPE_BIT = 1
PIPELINE_STAGE_DRAW_INDIRECT_BIT = 2
PIPELINE_STAGE_COMPUTE_SHADER_BIT = 2048
PIPELINE_STAGE_TRANSFER_BIT = 4096
PIPELINE_STAGE_HOST_BIT = 16384
PIPELINE_STAGE_ALL_COMMANDS_BIT = 65536
PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT = 8192
ACCESS_INDIRECT_COMMAND_READ_BIT = 1
ACCESS_UNIFORM_READ_BIT = 8
ACCESS_SHADER_READ_BIT = 32
ACCESS_SHADER_WRITE_BIT = 64
ACCESS_TRANSFER_READ_BIT = 2048
ACCESS_TRANSFER_WRITE_BIT = 4096
ACCESS_HOST_READ_BIT = 8192
ACCESS_MEMORY_READ_BIT = 32768
ACCESS_MEMORY_WRITE_BIT = 65536
QUERY_TYPE_TIMESTAMP = 2
QUERY_RESULT_64_BIT = 1
QUERY_RESULT_WAIT_BIT = 2
SEMAPHORE_TYPE_TIMELINE = 1
SUBGROUP_FEATURE_BASIC_BIT = 1
SUBGROUP_FEATURE_ARITHMETIC_BIT = 4
SUBGROUP_FEATURE_SHUFFLE_BIT = 16
PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT = 1
PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT = 2
PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_2_EXT = 3
COMPONENT_TYPE_FLOAT16_KHR = 0
COMPONENT_TYPE_FLOAT32_KHR = 1
COMPONENT_TYPE_BFLOAT16_KHR = 1000141000
SCOPE_SUBGROUP_KHR = 3
